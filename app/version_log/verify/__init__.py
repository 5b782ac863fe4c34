"""Checking a whole log."""
