"""The counters of a table, since it was made."""

COUNTERS = (
    "keys",  # looked up, every occurrence
    "hits_device",  # unique keys of a look-up that had a row in memory
    "recalled_from_spill",
    "recalled_from_base",
    "prefetched",  # recalled ahead of their turn
    "created",
    "admitted",
    "not_admitted",
    "refused_gradients",
    "evicted",
    "evicted_capacity",
    "evicted_quota",
    "evicted_resize",
    "expired",
    "spilled",
    "dropped",  # evicted without having changed
    "lost",  # evicted without a spill
    "forgotten",
    "regret",  # evicted or expired, then asked for again within 1,000 look-ups
    "cuts",
)
