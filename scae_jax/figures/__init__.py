"""Figures: arrays in, a matplotlib figure out."""
