"""Learns files in one pass, as a trainer would learn them from a topic; see README.md in app."""
