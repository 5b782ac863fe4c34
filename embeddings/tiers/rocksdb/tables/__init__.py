"""Reads the table files of a running RocksDB where they are mapped, beside RocksDB and without its process."""
