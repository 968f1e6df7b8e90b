"""Flax modules; each file has one concept."""
