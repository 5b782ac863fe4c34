"""Sends a file's rows into a topic; see README.md in app."""
