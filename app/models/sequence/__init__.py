"""Nets that read a user's history item by item: target attention and attention blocks."""
