"""Keys to slots: find, insert and evict, scan, resize."""
