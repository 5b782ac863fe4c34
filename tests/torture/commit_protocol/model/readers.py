"""Who reads the log: mergers, which make bases, and followers, which serve views."""

from dataclasses import replace

from tests.torture.commit_protocol.model.records import FEATURES, KEYS, MARK
from tests.torture.commit_protocol.schedules import Violation


class Merger:
    """Makes bases: begins and finishes at any time, so that anything may happen in between."""

    def __init__(self, world):
        self.world, self.job = world, None

    def begin(self, r):
        manifest, image = self.world.manifest(), self.world.bases_by_age()[-1]
        records, _ = self.world.after(manifest, image)
        if "base-durable" not in self.world.off:
            durable = max(
                (r.durable for r in records), default=0
            )  # what a record says, not what a seal covers: its writer looked
            records = [r for r in records if r.num <= durable]
        net, reached = image.net, image
        for record in records[: r // 2 % len(records) + 1 if records and r % 2 else None]:
            reached = reached.plus(record)
            found = self.world.net_of(record, image, records)
            if found is not None or "base-exact" in self.world.off:
                net = net if found is None else found
                self.job = replace(reached, net=net)
        if self.job:
            self.world.say(f"the merger begins base {self.job.num}")

    def finish(self):
        self.world.bases[self.job.chk] = self.job
        self.world.say(f"the merger has written base {self.job.num}: {self.job.rows}")
        self.job = None


class View:
    """A base and the changes since, at one version."""

    def __init__(self, base):
        self.base, self.changes, self.version = base, {}, base
        self.dense, self.orders = (
            base.dense,
            {i: None for i, _ in base.orders},
        )  # orders: id -> the version that carried it

    def apply(self, record, dense_carried=True):
        self.changes.update((k, (record.num, row)) for k, row in record.rows.items())
        self.version = record
        self.orders.update((i, record.chk) for i, _ in record.orders)
        if record.dense is not None or dense_carried is False:
            self.dense = record.dense

    def adopt(self, base):
        """Swap to a newer base at or below this version; changes up to it are in it."""
        self.base, self.changes = base, {k: c for k, c in self.changes.items() if c[0] > base.num}

    def row(self, key):
        row = self.changes[key][1] if key in self.changes else self.base.rows.get(key, MARK)
        return row if row != MARK and row[2] >= self.version.horizon[key % FEATURES] else None


class Follower:
    """A reader on another machine. Reading and using are two steps; a new view is built behind the served one."""

    def __init__(self, world):
        self.world, self.off, self.inbox, self.doubt = world, world.off, None, False
        self.served = self.building = None

    def read(self):
        manifest, view = self.world.manifest(), self.building or self.served
        if view and not self.doubt:
            records, whole = self.world.after(manifest, view.version, trusting="parent" in self.off)
            if records or whole:
                self.inbox = records and (manifest.epoch, None, records)
                return
        self.inbox = (manifest.epoch, View(self.world.bases_by_age()[-1]), [])  # a gap: start again

    def use(self, most=99):
        (epoch, fresh, records), self.inbox = self.inbox, None
        if "reader-looks" not in self.off and max(self.world.claims) > epoch:
            return
        if fresh:
            self.building, self.doubt = fresh, False
            self.world.say(f"a follower starts from base {fresh.base.num}")
        view = self.building or self.served
        for record in records[:most]:
            if record.chk in self.world.revoked:
                raise Violation(f"I4: a follower applies {record.num}, which is beyond a seal")
            view.apply(record, "dense-carried" not in self.off)
            self.world.say(f"a follower applies {record.num}")
        if self.building and (
            not self.served or self.building.version.num >= self.served.version.num or "swap-when-caught-up" in self.off
        ):
            if self.served and self.building.version.num < self.served.version.num:
                raise Violation(
                    f"I5: a follower goes back from {self.served.version.num} to {self.building.version.num}"
                )
            undone = (
                {i for i, chk in self.served.orders.items() if chk not in self.world.lost} - set(self.building.orders)
                if self.served
                else ()
            )
            if undone:
                raise Violation(
                    f"I5: orders {undone} are in {self.served.version.num}, not in {self.building.version.num}"
                )
            self.served, self.building = self.building, None
        self.check()

    def adopt(self):
        base = self.world.bases_by_age()[-1]
        if self.served and self.served.base.num < base.num <= self.served.version.num:
            self.served.adopt(base)
            self.world.say(f"a follower at {self.served.version.num} adopts base {base.num}")
            self.check()

    def check(self):
        version = self.served.version
        truth = self.world.truths[version.chk]
        if version.chk in self.world.revoked - self.world.lost - self.world.dropped:
            raise Violation(f"I4: a follower reads {version.num}, which is beyond a seal")
        if self.served.dense != truth.shown:
            raise Violation(f"I3: a follower's dense weights are not those of {version.num}")
        for key in range(KEYS):
            if self.served.row(key) != truth.rows.get(key):
                raise Violation(
                    f"I3, I5: a follower at {version.num} reads {key} as {self.served.row(key)}, "
                    f"truth is {truth.rows.get(key)}"
                )
