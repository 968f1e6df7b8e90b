"""Routing: which parent explains which child. Pure functions of one example."""
