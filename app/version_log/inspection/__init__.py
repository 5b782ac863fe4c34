"""Versions compared, and the history of a row."""
