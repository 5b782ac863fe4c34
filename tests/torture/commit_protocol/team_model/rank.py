"""One process of a team."""

from tests.torture.commit_protocol.schedules import Gone, Violation
from tests.torture.commit_protocol.team_model.pen import Pen
from tests.torture.commit_protocol.team_model.records import FEATURES, KEYS, MARK, Main, Shard, alive, raised, touch


class Rank:
    """One process of a team: applies the team's operations to its range and writes its shard records.

    It may be a zombie and not know it.
    """

    def __init__(self, team, index, host):
        self.team, self.world, self.off, self.index, self.host = team, team.world, team.off, index, host
        self.dead = self.frozen = self.loaded = False
        self.base, self.todo, self.pending, self.unseen, self.outbox = None, [], [], [], []

    able = property(lambda self: not self.dead and not self.frozen)

    def owns(self, key):
        return key * self.team.size // KEYS == self.index

    def has(self, partition):
        return partition % self.team.size == self.index

    def say(self, line):
        self.world.say(f"{self.team.epoch}/{self.index} {line}")

    def die(self, why):
        self.dead = True
        self.say(f"ends: {why}")

    # start
    def load(self):
        """Two steps: choose a base; then read the records up to the manifest's end."""
        world, manifest = self.world, self.team.manifest
        if self.base is None:
            self.base = world.bases_by_age()[-1]
            return None
        image, own = self.base, self.base
        versions, _ = world.versions_after(manifest if "load-to-tip" not in self.off else self.team.old, image)
        for record, shards in versions:
            image, own = image.plus(record, shards), own.plus(record, [s for s in shards if s.rank == self.index])
        if world.overtaken(self.team.epoch):
            return self.die("overtaken")
        if image.num < manifest.num:
            newest = world.bases_by_age()[-1]
            if newest.num <= self.base.num or "load-again" in self.off:
                raise Gone(
                    f"C4: epoch {self.team.epoch} cannot load: the log ends at {image.num}, sealed at {manifest.num}"
                )
            self.base = newest
            return None
        rows, pos = (
            (own if "rows-from-all" in self.off else image).rows,
            (own if "positions-from-all" in self.off else image).pos,
        )
        self.rows = {k: row for k, row in rows.items() if self.owns(k)}
        self.pos = {p: n for p, n in pos.items() if self.has(p)}
        self.dense, self.horizon, self.changed, self.last_shard = image.dense, image.horizon, set(), None
        if self.index == 0:
            self.team.done = dict.fromkeys((i for i, _ in self.base.orders if "order-in-base" not in self.off), 0)
            self.team.done.update((i, record.num) for record, _ in versions for i, _ in record.orders)
        self.loaded = True
        self.pen = Pen(world, self.team.epoch, self.index, self.host)
        self.say(f"loads base {self.base.num} and what follows up to {image.num}: {self.rows} {self.pos}")
        self.check()
        return None

    # learning
    def apply(self):
        """The next operation of the team, on this rank's share."""
        at = 0
        if self.index and len(self.todo) > 1 and self.todo[1][0] == "cut":  # only where nobody keeps the ranks together
            late = {"train": "one-step", "forget": "one-order", "rule": "one-order"}.get(self.todo[0][0])
            at = int(late in self.off)
        kind, *what = self.todo.pop(at)
        getattr(self, f"apply_{kind}")(*what)
        if not self.todo and not self.dead:
            self.check()

    def apply_train(self, samples):
        for partition, i, keys, event_time in samples:
            for key in keys:
                if self.owns(key):
                    self.rows[key] = touch(self.rows.get(key), key, i, event_time, self.horizon[key % FEATURES])
                    self.changed.add(key)
            self.dense += 1 << 4 * i
            if self.has(partition):
                self.pos[partition] += 1

    def apply_forget(self, key):
        if self.owns(key):
            self.rows.pop(key, None)
            (self.changed.discard if "forget-writes" in self.off else self.changed.add)(key)

    def apply_rule(self, feature, before):
        self.horizon = raised(self.horizon, feature, before)
        self.rows = alive(self.rows, self.horizon)

    def apply_rollback(self, target, end, r):
        """This rank reads the log by itself; what it lacks makes it end, and all begin again."""
        world, manifest = self.world, self.team.manifest
        if "rollback-one-target" in self.off:
            places = world.rollback_places(manifest)
            target = places[r % len(places)]
        base = next((b for b in reversed(world.bases_by_age()) if b.num <= target[0]), None)
        if base is None:
            return self.die("the version to go back to is retired")
        image, later = base, []
        for record, shards in world.versions_after(manifest, base)[0]:
            if record.num <= target[0]:
                image = image.plus(record, shards)
            else:
                later.append((record, shards))
        if (
            world.overtaken(self.team.epoch)
            or (image.num, image.chk) != target
            or ((later and later[-1][0].num) or image.num) < end
        ):
            return self.die("cannot read the log for a rollback")
        gone = {key for record, _ in later for _, key in record.orders}
        if "rollback-orders" in self.off:
            gone = {key for _, shards in later for s in shards for key, row in s.rows.items() if row == MARK}
        if "rollback-forgets" in self.off:
            gone, self.horizon = set(), image.horizon
        self.rows = alive({k: row for k, row in image.rows.items() if self.owns(k) and k not in gone}, self.horizon)
        self.changed = {k for _, shards in later for s in shards for k in s.rows if self.owns(k)}
        self.dense, self.pos = image.dense, {p: n for p, n in image.pos.items() if self.has(p)}
        self.say(f"goes back to {image.num}: {self.rows}, not {gone}")
        return None

    def apply_cut(self, num, chk, parent, orders):
        shard = Shard(
            self.team.epoch,
            num,
            self.index,
            (chk, self.index),
            self.last_shard,
            {k: self.rows.get(k, MARK) for k in self.changed},
            dict(self.pos),
        )
        self.pending.append(shard)
        self.last_shard, self.changed = shard.chk, set()
        self.say(f"cuts {num}: {shard.rows} {shard.pos}")
        if self.index == 0:
            self.team.waiting.append(Main(self.team.epoch, num, chk, self.dense, self.horizon, orders, parent))

    # writing
    def write(self):
        shard = self.pending.pop(0)
        self.pen.append(shard, shown=not self.world.lagging)
        self.say(f"writes its shard of {shard.num}")
        self.unseen.append((shard.num, shard.chk, self.pen.segment, len(self.pen.segment.records)))
        self.tell_written()

    def tell_written(self):
        """Report what everyone would see by now."""
        while self.unseen and (self.unseen[0][2].shown >= self.unseen[0][3] or "written-is-seen" in self.off):
            self.outbox.append(("written", *self.unseen.pop(0)[:2]))

    def sync(self):
        self.pen.sync()
        self.tell_written()
        self.say(f"fsyncs up to {self.pen.noted}")

    def tell_synced(self):
        self.outbox.append(("synced", self.pen.newest if "note-first" in self.off else self.pen.noted))

    def write_all(self):
        while self.todo:
            self.apply()
        while self.pending:
            self.write()
        self.pen.show()
        self.tell_written()

    def check(self):
        """C1, C2: between operations this rank's share is the oracle's."""
        truth = self.team.truth
        rows, pos = (
            {k: row for k, row in truth.rows.items() if self.owns(k)},
            {p: n for p, n in truth.pos.items() if self.has(p)},
        )
        if (self.rows, self.pos, self.dense, self.horizon) != (rows, pos, truth.dense, truth.horizon):
            raise Violation(
                f"C1: rank {self.team.epoch}/{self.index} has {self.rows} {self.pos}, truth is {rows} {pos}"
            )
