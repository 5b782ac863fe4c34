"""Which ids get a row (admission), how many a feature may have (quotas), how long they live (TTL), who goes first."""
