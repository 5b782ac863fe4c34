"""`springtide demo`: everything at once; see README.md in app."""
