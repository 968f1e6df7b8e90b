"""Flax modules, one concept a file."""
