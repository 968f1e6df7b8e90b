"""Experiments on trained models beyond their reports, one command each; results are in results/."""

import jax

jax.config.update("jax_enable_x64", False)  # as in training and evaluation
