"""Retention of a log: pinned versions, and bases by rule."""
