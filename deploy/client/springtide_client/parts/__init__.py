"""A table in parts: each server holds the rows of one range of keys, and they are asked for theirs at one version."""
