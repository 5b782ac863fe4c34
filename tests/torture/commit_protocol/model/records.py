"""What is on the disk, in memory and in the oracle."""

from dataclasses import dataclass, field, replace

KEYS, FEATURES, PARTITIONS, HOSTS, EPOCH, MARK, MAIN = 12, 2, 4, 3, 1000, "forgotten", -1


def touch(row, key, sample, event_time, horizon):
    """A row is (value, count, last_seen); its value tells which samples moved it, in which order."""
    value, count, seen = row or (key, 0, event_time)
    return (value * 31 + sample + 1) % (2**61 - 1), count + 1, max(seen, event_time, horizon)


def alive(rows, horizon):
    return {k: row for k, row in rows.items() if row != MARK and row[2] >= horizon[k % FEATURES]}


def raised(horizon, feature, before):
    return tuple(max(h, before) if f == feature else h for f, h in enumerate(horizon))


@dataclass(slots=True)
class Shard:
    """One rank's share of a version: its rows that changed, its marks, the positions of its partitions."""

    epoch: int
    num: int
    rank: int
    chk: tuple  # stands for the checksum
    parent: tuple | None
    rows: dict
    pos: dict
    torn: bool = False


@dataclass(slots=True)
class Main:
    """A version record: what all ranks share, and which shard records belong to it."""

    epoch: int
    num: int
    chk: int
    dense: int | None  # the net's parameters as followers get them; None: as before
    net: int | None  # the exact state of net and optimizer, if the record itself carries it
    exact: int  # the version (its checksum) whose exact state is this version's too; -1: of no version
    horizon: tuple
    orders: tuple  # ((id, the key it forgot or None), ...)
    parent: int
    shards: tuple = ()  # ((rank, checksum), ...)
    durable: int = 0  # the newest number known to be durable when this was written
    torn: bool = False


@dataclass(slots=True)
class Image:
    """The whole state at one version: a base, a follower's view, what a starter reads."""

    epoch: int = 0
    num: int = 0
    chk: int = 0
    rows: dict = field(default_factory=dict)
    pos: dict = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    dense: int | None = 0
    net: int | None = 0  # a base has it
    exact: int = 0
    horizon: tuple = (0,) * FEATURES
    orders: tuple = ()
    below: "Image | None" = None  # a follower's: the base that it maps, and the changes above: key -> (number, row)
    changes: dict = field(default_factory=dict)

    def plus(self, record, shards, *, carries_dense=True):
        """The state one version later."""
        rows, pos = dict(self.rows), dict(self.pos)
        for shard in shards:
            rows.update(shard.rows)
            pos.update(shard.pos)
        changes = {key: (record.num, row) for shard in shards for key, row in shard.rows.items()} if self.below else {}
        return Image(
            record.epoch,
            record.num,
            record.chk,
            alive(rows, record.horizon),
            pos,
            self.dense if record.dense is None and carries_dense else record.dense,
            record.net,
            record.exact,
            record.horizon,
            self.orders + record.orders,
            self.below,
            self.changes | changes,
        )

    def over(self, base):
        """The same state, with another base mapped; changes up to it are in it."""
        return replace(self, below=base, changes={k: c for k, c in self.changes.items() if c[0] > base.num})

    def mapped_rows(self):
        """The rows as a reader finds them: changes before the mapped base."""
        rows = self.below.rows | {key: row for key, (_, row) in self.changes.items()}
        return alive(rows, self.horizon)


@dataclass(slots=True)
class Segment:
    host: int  # where it is written
    records: list = field(default_factory=list)
    shown: int = 0  # records that other hosts see
    synced: int = 0
    entry: bool = False  # its directory entry is fsynced


@dataclass(slots=True)
class State:
    """The exact state of one version in a file of its own."""

    num: int
    net: int
    host: int  # where it is written
    synced: bool = False


@dataclass(slots=True)
class Generation:
    """A part of one rank's spill: what was evicted between two cuts."""

    store: dict = field(default_factory=dict)
    closed: int | None = None
    destroyed: bool = False


@dataclass(slots=True)
class Flight:
    """A recall under way: the places still to be looked at, and what was found."""

    generations: list
    base: Image
    found: object = None


@dataclass(slots=True)
class Manifest:
    """What an epoch makes of the past: [(main file, records that count)], {shard file: records that count}, the end."""

    epoch: int
    main: list
    shards: dict
    num: int
    chk: int


@dataclass(slots=True)
class Truth:
    """The oracle: plain dictionaries for the whole model, as one process alone would have them."""

    rows: dict = field(default_factory=dict)
    dense: int = 0
    shown: int = 0  # the dense net that followers have
    pos: dict = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    skipped: frozenset = frozenset()  # samples
    horizon: tuple = (0,) * FEATURES
    orders: tuple = ()
    forgotten: dict = field(default_factory=dict)  # key -> how often

    def copy(self):
        return replace(self, rows=dict(self.rows), pos=dict(self.pos), forgotten=dict(self.forgotten))

    def learn(self, horizon, partition, i, keys, event_time):
        for key in keys:
            self.rows[key] = touch(self.rows.get(key), key, i, event_time, horizon[key % FEATURES])
        self.dense += 1 << 4 * i
        self.pos[partition] += 1

    def back_to(self, then):
        self.dense, self.pos, self.skipped = then.dense, dict(then.pos), then.skipped
        kept = {k: row for k, row in then.rows.items() if self.forgotten.get(k) == then.forgotten.get(k)}
        self.rows = alive(kept, self.horizon)
