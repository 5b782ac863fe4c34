"""One lookup of a batch: prefetching its rows, making them resident, pinning them, and reading without creating."""
