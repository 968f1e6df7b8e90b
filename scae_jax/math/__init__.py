"""Pure functions of one example: poses, warping, mixtures, sparsity, routing."""
