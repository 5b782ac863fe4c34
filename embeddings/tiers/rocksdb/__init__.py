"""The tiers under memory: what a table asks of one, and those there are: the host, RocksDB, none."""
