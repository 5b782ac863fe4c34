"""A made-up world of users, items and drifting tastes, and the clicks it makes; see README.md in app."""
