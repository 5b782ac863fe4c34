"""Metrics of the server: the registry, the sums over workers, and the declarations."""
