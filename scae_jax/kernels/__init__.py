"""Faster forms of the mathematics for one backend each; each equals its definition."""
