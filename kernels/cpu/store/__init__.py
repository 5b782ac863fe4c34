"""The arrays of a table and their memory."""
