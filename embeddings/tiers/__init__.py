"""The tiers below memory: a host tier under a device, the spill in RocksDB, and the newest base of the log."""
