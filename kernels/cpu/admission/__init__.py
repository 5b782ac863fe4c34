"""Keys without rows: counting sketch, ghosts, Bloom filter."""
