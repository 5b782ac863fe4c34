"""Scores by the values of a feature."""
