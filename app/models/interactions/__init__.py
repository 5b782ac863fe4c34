"""Nets that multiply the vectors of different fields: feature interactions."""
