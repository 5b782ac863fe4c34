"""Three counters that tell whether something remembered about the rows in memory is still true."""


class ChangeCounters:
    """Counters to remember beside a fact about rows. The fact must be dropped as soon as one of them has moved.

    - Rows recalled from the lower tiers ahead of their lookup depend on `writes`.
    - The set of a batch's keys that are missing from memory depends on `writes` and `removals`.
    - The slots of an open lookup depend on `erasures`; it then finds its slots again.
    """

    def __init__(self) -> None:
        self.writes = 0  # keys were inserted or forgotten, or another base was mapped: a recall may be outdated
        self.removals = 0  # rows left memory or changed slots, other than to make room for an insertion
        self.erasures = 0  # those removals after which an open lookup's slot may be empty or another key's

    def count_write(self) -> None:
        self.writes += 1

    def count_removal(self) -> None:
        """Rows of no open lookup left memory."""
        self.removals += 1

    def count_erasure(self) -> None:
        """Rows left memory or changed slots, perhaps rows of open lookups."""
        self.removals += 1
        self.erasures += 1
