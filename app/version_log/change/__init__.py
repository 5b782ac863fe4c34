"""A changed schema, table or net: what of a version goes on, and the base with which the log goes on."""
