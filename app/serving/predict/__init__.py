"""Predictions over HTTP, scored in micro-batches."""
