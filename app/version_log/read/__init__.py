"""Reading a log: indexes, ranges of versions, rows, strings, and corruption."""
