"""The rules of the protocol, in the order in which one meets them, and what the promises hold without."""

RULES = {
    # the tiers of one rank, and forgetting
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
    "own-spill": "The spill's directory is named for the epoch; a rank deletes only directories of older epochs.",
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
    "forget-mark": "A forgotten key leaves a mark in the newest generation.",
    "horizon-everywhere": (
        "A rule only raises the horizon of its feature; a row is alive where last_seen >= horizon, wherever it is "
        "read, and a dead row leaves memory like any other."
    ),
    "horizon-clamp": "A touch sets last_seen to max(last_seen, event time, horizon).",
    # the log of many writers
    "one-step": (
        "All ranks cut a version after the same step; rank 0 decides when, and its number, in that step's exchange. "
        "Number = epoch * 2^32 + count."
    ),
    "numbers-grow": (
        "The count is of versions cut, not of those published, and an epoch is never used twice: no number returns, "
        "also after a power loss."
    ),
    "written-is-seen": (
        "A rank reports (number, checksum) of a shard record as written when every host would see it in the file, not "
        "when its write returned."
    ),
    "all-reported": (
        "Rank 0 appends the version record only when every rank of the epoch has reported its shard record of that "
        "number as written."
    ),
    "in-order": (
        "Version records are appended in the order of their cuts, each with the checksum of the one before as parent; "
        "the first of an epoch has the seal's end as parent."
    ),
    "new-file-after-torn": (
        "After a failed append a writer goes on in a new file, beginning with the same record: also a rank with its "
        "shard files."
    ),
    "fsync-in-order": "Each writer fsyncs its file before its next file takes a record.",
    "folder-fsync": "A file counts as fsynced only when its directory entry is too.",
    "note-first": (
        "A rank notes the newest number it has written, then fsyncs, then reports the noted number as fsynced."
    ),
    "durable-shards": "Durable needs the report of every rank that its shard records up to that number are fsynced.",
    "durable-main": "Durable needs the version record itself fsynced.",
    "durable-looks": (
        "When all that has been reported, rank 0 looks once more that no higher epoch is claimed; only then it says "
        "durable. Bases, unlinked orders and reported offsets rest on that."
    ),
    "claim-exclusive": (
        "Rank 0 claims the next epoch by exclusive create; the other ranks hear the epoch from rank 0 of their own "
        "launch, never from the folder."
    ),
    "claim-fsync": (
        "The claim's directory entry is fsynced before anything else is done: who looks for the next claim must find "
        "it."
    ),
    "claim-gaps": (
        "After that fsync a lower claim that is missing is made again, and the folder fsynced again: a look asks for "
        "one name only, the next number."
    ),
    "claim-first": "Claim, then look at what the predecessors left.",
    "fsync-then-measure": (
        "Fsync all files of the predecessors and the folder, and only then measure: another host's power loss may take"
        " away what was measured before it was fsynced."
    ),
    "measure-within": (
        "Note the files' lengths before that fsync, and measure only within them: a zombie may write on in between."
    ),
    "seal-fsync-main": "What is sealed of the main chain is fsynced by the starter.",
    "seal-fsync-shards": (
        "Shard files of the predecessor are fsynced by the starter too, those of other hosts included."
    ),
    "seal-whole": (
        "The seal ends before the first version of which a shard record is missing or does not have the checksum that "
        "the version record names."
    ),
    "base-covers": (
        "Of versions at or below the base nothing is asked: neither their version records nor their shard records need"
        " be there."
    ),
    "sealed-only": "Main files of older epochs count only as far as the newest manifest lists them.",
    "load-to-head": (
        "Every rank loads exactly up to the end that its own epoch's manifest names, from whichever base is the newest"
        " that can be read."
    ),
    "rows-from-all": (
        "A rank takes the rows of its range from the shard records of all ranks, whatever their number was."
    ),
    "positions-from-all": (
        "A rank takes the position of each of its partitions from the newest shard record that tells one, whichever "
        "rank wrote it; bases hold all positions."
    ),
    "load-again": "A rank whose base or records are retired while it loads begins again with the newest base.",
    "parent": "A version record is applied only onto its parent.",
    "shard-checksum": (
        "A shard record is the one with the named checksum in the files of (the record's epoch, rank); anything else "
        "is as good as missing."
    ),
    "whole-version": "A version is applied with all its shard records or not at all.",
    "reader-looks": (
        "Who has read version records looks afterwards, before using them, that no epoch above the manifest is "
        "claimed; else throws them away and waits for the seal."
    ),
    "base-above": (
        "A missing shard record is the end of the log for now, not a gap: read again later. But where nothing whole "
        "follows a reader's version and a base stands above it, start again from that base, also while the epoch "
        "lives."
    ),
    "swap-when-caught-up": (
        "A follower that starts again serves its old view until the new one's number has reached it."
    ),
    "base-durable": "A base is made of a version that a version record tells to be durable.",
    "base-whole": "A base is made only when every shard record on the way was read.",
    "base-fsync": "A base is fsynced, folder and all, before it has its name.",
    "retire-oldest-kept": "A file is retired when the oldest kept base covers all its records.",
    "retire-looks": (
        "Who retires lists the bases first, then looks that no epoch above the manifest is claimed, then decides; else"
        " retires nothing."
    ),
    "retire-not-newest": (
        "The newest main file and the newest shard file of every rank of the ruling epoch are never retired."
    ),
    "retire-own-records": "Each file is judged by its own records: main and shard files end at different versions.",
    "one-order": (
        "Rank 0 alone reads orders; all ranks execute an order at the same step. The version record tells its id."
    ),
    "forget-writes": (
        "Forgetting a key is a write of the rank that owns it: its mark travels in that rank's shard record like a row."
    ),
    "order-durable": "An order's file is unlinked only when the version that tells it is durable.",
    "order-in-base": "Ids of executed orders travel in bases too, and every start reads them back.",
    "rollback-published": (
        "Before a rollback the ranks cut, and wait until that version is published, with no step in between: it is "
        "read from the log."
    ),
    "rollback-one-target": (
        "Rank 0 names the version to go back to, by number and checksum; a rank that cannot read it dies, and all "
        "begin again."
    ),
    "rollback-forgets": (
        "A rollback brings back nothing forgotten since: horizons and executed orders are not rolled back."
    ),
    "rollback-orders": (
        "What was forgotten since is read from the orders in the version records, not from marks in shard records."
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
}

EXTRA = {
    "shard-parent": "A shard record names that rank's previous shard record of the epoch, and readers check it.",
    "seal-shards": "The manifest names the valid lengths of shard files too, and readers keep to them.",
    "look-late": (
        "A follower looks for a higher claim after it has read the shard records, not only after the version records."
    ),
    "drop-unchanged": "An unchanged row is dropped when evicted instead of spilled again: only fewer writes.",
}
