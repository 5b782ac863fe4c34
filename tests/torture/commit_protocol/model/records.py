"""What lies on the modelled disk, and the oracle: a plain dictionary, and the rest of what a version holds."""

from dataclasses import dataclass, field, replace

KEYS, FEATURES, KEEP_BASES, EPOCH, MARK = 12, 2, 2, 1000, "forgotten"


def touch(row, key, sample, event_time, horizon):
    """A row is (value, count, last_seen); its value tells which samples moved it, in which order."""
    value, count, seen = row or (key, 0, event_time)
    return (value * 31 + sample + 1) % (2**61 - 1), count + 1, max(seen, event_time, horizon)


@dataclass(slots=True)
class Version:
    """What a version says of the world; a record adds the rows since its parent, a base holds them all."""

    epoch: int
    num: int
    chk: int  # stands for the checksum
    rows: dict
    horizon: tuple = (0,) * FEATURES
    dense: int | None = 0  # the net's parameters as followers get them; None in a record: as before
    net: int | None = None  # the exact state of net and optimizer, if the version itself carries it; a base does
    exact: int = -1  # the version (its checksum) whose exact state is this version's too; -1: of no version
    pos: int = 0
    orders: tuple = ()  # ((id, the key it forgot or None), ...)
    parent: int = -1
    durable: int = 0  # the newest number known to be durable when this was cut
    torn: bool = False

    def plus(self, record):
        """The image one record later."""
        rows = {
            k: row
            for k, row in {**self.rows, **record.rows}.items()
            if row != MARK and row[2] >= record.horizon[k % FEATURES]
        }
        dense = self.dense if record.dense is None else record.dense
        return replace(record, rows=rows, dense=dense, orders=self.orders + record.orders)


@dataclass(slots=True)
class Segment:
    records: list = field(default_factory=list)
    synced: int = 0


@dataclass(slots=True)
class State:
    """The exact state of one version in a file of its own."""

    num: int
    net: int
    synced: bool = False


@dataclass(slots=True)
class Manifest:
    """What an epoch makes of the past: [(file, records that count)], the last number of each epoch, where it ends."""

    epoch: int
    sealed: list
    last: dict
    tip: int


@dataclass(slots=True)
class Generation:
    store: dict = field(default_factory=dict)
    closed: int | None = None
    destroyed: bool = False


@dataclass(slots=True)
class Flight:
    """A recall under way: the places still to be looked at, and what was found."""

    generations: list
    base: Version
    found: object = None


@dataclass(slots=True)
class Truth:
    """The oracle: a plain dictionary, and the rest of what a version holds."""

    rows: dict
    dense: int = 0
    shown: int = 0  # the dense net that followers have
    pos: int = 0
    horizon: tuple = (0,) * FEATURES
    skipped: frozenset = frozenset()
    orders: tuple = ()
    forgotten: dict = field(default_factory=dict)  # key -> how often

    def copy(self):
        return replace(self, rows=dict(self.rows), forgotten=dict(self.forgotten))

    def forget_rule(self, feature, before):
        self.horizon = tuple(max(h, before) if f == feature else h for f, h in enumerate(self.horizon))
        self.rows = {k: row for k, row in self.rows.items() if row[2] >= self.horizon[k % FEATURES]}

    def back_to(self, then):
        self.dense, self.pos, self.skipped = then.dense, then.pos, then.skipped
        self.rows = {
            k: row
            for k, row in then.rows.items()
            if self.forgotten.get(k) == then.forgotten.get(k) and row[2] >= self.horizon[k % FEATURES]
        }
