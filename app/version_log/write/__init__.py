"""Writing a log: starting an epoch and appending versions."""
