"""Looks at the first rows of a file or a topic and proposes a configuration; see README.md in app."""
