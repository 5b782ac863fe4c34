"""Scores of predictions: passes over many groups of samples."""
