"""Evaluation: clustering, linear probes, the report. Names no model."""
