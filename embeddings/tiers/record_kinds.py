"""Kinds of a spill's records of a key. Imports nothing: the spill's own process, which must start fast, uses it too."""

ABSENT = 0  # nothing; a base may have a row
ROW = 1
TOMBSTONE = 2  # it was forgotten, whatever an older generation or a base has
IN_BASE = 3  # a row of a base: no spill returns it
