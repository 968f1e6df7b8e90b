"""Stress tests of runs: random configs, damaged folders, kills at random moments."""
