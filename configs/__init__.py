"""Experiments: one file each, whose `get_config` returns the whole configuration."""
