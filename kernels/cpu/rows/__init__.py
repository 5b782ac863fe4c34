"""Rows in and out of a store, and their updates."""
