"""Hand-written kernels for accelerators, each equal to a composition of the mathematics."""
