"""Which ids get a row (admission), how many a feature may have (quotas), and how long they live (TTL)."""
