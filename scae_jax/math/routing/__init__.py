"""How parts find their object: pure functions of one example."""
