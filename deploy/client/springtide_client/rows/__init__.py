"""Rows at one version: layers over a base, how keys are found in them, and counts of ids without a row."""
