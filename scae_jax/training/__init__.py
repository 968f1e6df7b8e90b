"""Training: state, step, loop, checkpoints, metrics. Names no model and no data set."""
