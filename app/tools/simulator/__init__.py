"""A simulated world of users, items and drifting preferences, and its clicks; see README.md in app."""
