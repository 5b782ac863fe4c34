"""The counters of a table, since it was made."""

COUNTERS = (
    "keys",  # looked up, every occurrence
    "hits_device",  # unique keys of a look-up that had a row in memory
    "recalled_from_spill",  # those that a host tier still had are hits_host too
    "recalled_from_base",
    "prefetched",  # asked for below ahead of their turn, in time
    "created",
    "admitted",
    "not_admitted",
    "refused_gradients",
    "evicted",
    "evicted_capacity",
    "evicted_quota",
    "evicted_resize",
    "expired",  # rows in memory that a rule had forgotten: swept away, or begun anew
    "spilled",
    "dropped",  # evicted without having changed
    "lost",  # evicted without a spill
    "forgotten",  # keys named to be forgotten
    "regret",  # evicted or expired, then asked for again within 1,000 look-ups
    "cuts",
)
