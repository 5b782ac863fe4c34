"""The spill in RocksDB, in a process of its own."""
