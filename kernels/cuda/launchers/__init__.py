"""Argument checks and kernel launches, one module per group of ops."""
