"""A version as one file."""
