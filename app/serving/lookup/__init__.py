"""Rows by id, over HTTP: codecs, the fast path, neighbors."""
