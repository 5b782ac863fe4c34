"""The log as a folder: which files count, a cursor over its records, mapped bases."""
