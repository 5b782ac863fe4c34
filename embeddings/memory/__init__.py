"""Rows in memory: where they are, which must stay, which are dirty, and what happens to those that are evicted."""
