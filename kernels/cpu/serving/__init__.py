"""Compiled parts of a server: searches, JSON, request parsing."""
