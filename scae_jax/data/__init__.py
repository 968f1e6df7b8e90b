"""Data: sources, their cache, and batches made on the device."""
