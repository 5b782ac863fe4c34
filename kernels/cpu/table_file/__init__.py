"""RocksDB's table files, read where they are mapped: their checksum, filters, indexes and blocks."""
