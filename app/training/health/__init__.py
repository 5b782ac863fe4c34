"""Judges the model before it is published."""
