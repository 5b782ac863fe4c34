"""The rules of the storage protocol, by name. A schedule breaks without each of them (`mutants`)."""

RULES = {
    # the tiers of one run
    "side-buffer": (
        "A touched row that leaves memory before its version is cut is copied to the interval's side buffer."
    ),
    "newest-copy": "At the cut the resident copy of a touched key goes before its copy in the side buffer.",
    "cut-between-batches": (
        "Versions are cut between batches only: a batch begins when the side buffer can take as many rows as the "
        "batch may evict, else after a cut."
    ),
    "changed-after-restart": (
        "Changed means: what lies below would not give this value. Created and replayed rows are changed."
    ),
    "fresh-spill": (
        "Whatever loads from the log (start, rollback, gate) begins with empty memory, empty spill and no recall "
        "in flight."
    ),
    "own-spill": "The spill's directory is named for the epoch; a run deletes only directories of older epochs.",
    "queue-first": "A recall sees the writes that still wait on their way into the spill.",
    "generation-at-cut": (
        "A generation opens in the same instant as a cut: what is evicted after the cut goes to the new one."
    ),
    "generation-covered": "A generation is destroyed only when the mapped base is at or above the cut that closed it.",
    "recall-pins": (
        "A recall reads one snapshot of (generations, base), and a generation lives until no recall holds it."
    ),
    "recall-yields": (
        "A recall in flight is cancelled by whatever writes its key first: another recall, creation, forgetting."
    ),
    # forgetting
    "forget-mark": "A forgotten key leaves a mark in the newest generation.",
    "forget-writes": (
        "Forgetting a key is a write: its mark replaces the row in the side buffer and travels in the version like"
        " a row."
    ),
    "horizon-everywhere": (
        "A rule only raises the horizon of its feature; a row is alive where last_seen >= horizon, wherever it is "
        "read, and a dead row leaves memory like any other."
    ),
    "horizon-clamp": "A touch sets last_seen to max(last_seen, event time, horizon).",
    # the log
    "parent": "A version is applied only onto its parent.",
    "numbers-grow": "Numbers grow along the log and never return, also after a power loss: epoch * 2^32 + count.",
    "claim-first": (
        "Claim the epoch first, then measure the predecessor's files, then publish the manifest that seals them."
    ),
    "reader-looks": (
        "Who has read records looks, before using them, that no epoch above their manifest is claimed; else waits "
        "for its seal."
    ),
    "sealed-only": "Files and bytes of an older epoch count only as far as the newest manifest lists them.",
    "seal-fsync": "What is sealed is fsynced before the manifest that seals it.",
    "fsync-in-order": "A segment is fsynced before the next one takes its first record.",
    "new-file-after-torn": "After a failed append the trainer goes on in a new file.",
    "durable-looks": (
        "Durable = fsynced, and a look afterwards found no higher epoch claimed. Bases, unlinking, receipts, "
        "offsets rest on durable versions only."
    ),
    # the dense net at its own pace
    "state-at-cut": "The exact state of a version is what it was at the cut, however late it is written.",
    "cut-back": "A start goes back to the newest version whose exact state is complete, and seals the log there.",
    "seal-state": "The exact state that a start goes back to is fsynced before the manifest that seals the log there.",
    "durable-exact": (
        "Durable also means that the exact state is on disk: what rests on durable versions rests on those that a "
        "restart keeps."
    ),
    "state-fsync": "An exact state counts as being on disk once it and its name are fsynced.",
    "state-kept": "An exact state is unlinked only when a newer exact version is durable.",
    "base-exact": "A base is made only of a version whose exact state is there.",
    "restore-exact": (
        "Rollback and gate restore only versions whose exact state is there; what came later is rolled back too."
    ),
    "order-exact": "A version that carries an order is published only when its exact state is on disk.",
    "dense-carried": "A version without the net's parameters has those of the newest version before it that has them.",
    # bases, retirement, followers, orders
    "base-durable": "A base is made only of a durable version.",
    "retire-oldest-kept": "A segment is retired when the oldest kept base covers it.",
    "swap-when-caught-up": (
        "A follower that starts again serves its old view until the new one's number has reached it."
    ),
    "order-durable": "An order's file is unlinked only when the version that carries the order is durable.",
    "order-in-base": "The ids of executed orders travel in bases too.",
    "rollback-forgets": (
        "Rollback brings back nothing forgotten since, by key or by rule: horizons and executed orders are not "
        "rolled back."
    ),
    "rollback-orders": (
        "What was forgotten is read from the orders in the log, not from the marks: a mark of a rollback is no "
        "forgetting."
    ),
}
OPTIONS = {
    "drop-unchanged": "An unchanged row is dropped when evicted instead of spilled again."
}  # may be off: only more writes
