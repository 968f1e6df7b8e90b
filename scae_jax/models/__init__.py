"""Models: one file a system."""
