"""Capsule networks as inverse graphics, in JAX and Flax."""
