"""One process of a team, and the files that a process writes."""

from dataclasses import replace

from tests.torture.commit_protocol.model.records import (
    FEATURES,
    KEYS,
    MARK,
    Generation,
    Main,
    Segment,
    Shard,
    State,
    alive,
    raised,
    touch,
)
from tests.torture.commit_protocol.model.tiers import Tiers
from tests.torture.commit_protocol.schedules import Gone, Violation


class Pen:
    """One writer's files seg-<epoch>-<who>-<n>: rank numbers write shard records, MAIN the version records."""

    def __init__(self, world, epoch, who, host):
        self.world, self.epoch, self.who, self.host, self.files = world, epoch, who, host, 0
        self.newest = self.noted = 0  # numbers: written; written when the last fsync began
        self.new_file()

    def new_file(self):
        self.name = (self.epoch, self.who, self.files)
        self.files += 1
        self.segment = Segment(self.host)  # kept open: a zombie's may be unlinked under it
        if self.name in self.world.disk:
            raise Violation(f"C7: two writers of file {self.name}")
        self.world.disk[self.name] = self.segment

    def append(self, record, shown):
        self.world.note_number(record, self.who)
        self.segment.records.append(record)
        self.newest = record.num
        if shown:
            self.show()

    def show(self):
        self.segment.shown = len(self.segment.records)

    def tear(self, record):
        """An append fails half way."""
        self.world.say(f"file {self.name} gets half of {record.num}")
        self.segment.records.append(replace(record, torn=True))
        self.show()
        if "new-file-after-torn" not in self.world.off:
            self.roll()

    def sync(self):
        self.noted = self.newest
        self.segment.synced = self.segment.shown = len(self.segment.records)
        self.segment.entry = self.segment.entry or "folder-fsync" not in self.world.off

    def roll(self):
        if "fsync-in-order" not in self.world.off:
            noted = self.noted
            self.sync()
            self.noted = noted  # nobody asked
        self.new_file()


class Rank:
    """One process of a team: applies the team's operations to its range and writes its shard records.

    It may be a zombie and not know it.
    """

    def __init__(self, team, index, host):
        self.team, self.world, self.off, self.index, self.host = team, team.world, team.off, index, host
        self.dead = self.frozen = self.loaded = False
        self.base, self.todo, self.pending, self.unseen, self.outbox = None, [], [], [], []
        self.keys, self.last_num = [key for key in range(KEYS) if self.owns(key)], 0

    name = property(lambda self: f"rank {self.team.epoch}/{self.index}")
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
            if "own-spill" in self.off:
                self.empty_other_spills()
            return None
        image, own = self.base, self.base
        versions, _ = world.versions_after(manifest if "load-to-head" not in self.off else self.team.old, image)
        for record, shards in versions:
            image, own = image.plus(record, shards), own.plus(record, [s for s in shards if s.rank == self.index])
        net = world.net_of(image, self.base, [record for record, _ in versions])
        if world.overtaken(self.team.epoch):
            return self.die("overtaken")
        if image.num < manifest.num or net is None:
            newest = world.bases_by_age()[-1]
            if newest.num <= self.base.num or "load-again" in self.off:
                raise Gone(
                    f"C4: epoch {self.team.epoch} cannot load: the log ends at {image.num}, sealed at {manifest.num}"
                    f"{', its exact state is not there' if net is None else ''}"
                )
            self.base = newest
            return None
        if "rows-from-all" in self.off:
            versions = [(record, [s for s in shards if s.rank == self.index]) for record, shards in versions]
        rows, pos = (
            (own if "rows-from-all" in self.off else image).rows,
            (own if "positions-from-all" in self.off else image).pos,
        )
        self.rows = {k: row for k, row in rows.items() if self.owns(k)}
        self.pos = {p: n for p, n in pos.items() if self.has(p)}
        self.dense, self.horizon, self.last_num, self.last_shard = net, image.horizon, image.num, None
        self.tiers = Tiers(self, self.base, versions)
        if self.index == 0:
            self.team.done = dict.fromkeys((i for i, _ in self.base.orders if "order-in-base" not in self.off), 0)
            self.team.done.update((i, record.num) for record, _ in versions for i, _ in record.orders)
            self.team.continue_from(image, net)
        self.loaded = True
        self.pen = Pen(world, self.team.epoch, self.index, self.host)
        self.say(f"loads base {self.base.num} and what follows up to {image.num}: {self.rows} {self.pos}")
        self.check()
        return None

    def empty_other_spills(self):
        """Delete what later runs of this rank have spilled: only where directories are not named for their epoch."""
        for rank in (rank for team in self.world.teams for rank in team.ranks if rank.loaded):
            if rank.index == self.index and rank.team.epoch > self.team.epoch:
                rank.tiers.gens = [Generation(closed=g.closed) for g in rank.tiers.gens]

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
        horizon = self.world.clamp(self.horizon)
        for partition, i, keys, event_time in samples:
            own = [key for key in keys if self.owns(key)]
            for key in own:
                self.tiers.make_resident(key, own)
            for key in own:
                self.tiers.write(key, touch(self.tiers.peek(key), key, i, event_time, horizon[key % FEATURES]))
                self.rows[key] = touch(self.rows.get(key), key, i, event_time, horizon[key % FEATURES])
            self.dense += 1 << 4 * i
            if self.has(partition):
                self.pos[partition] += 1

    def apply_forget(self, key):
        if self.owns(key):
            self.rows.pop(key, None)
            self.tiers.forget(key)

    def apply_rule(self, feature, before):
        self.horizon = raised(self.horizon, feature, before)
        self.rows = alive(self.rows, self.horizon)
        if "horizon-everywhere" in self.off:
            self.tiers.sweep()

    def apply_rollback(self, target, end, r, skip_to=None):
        """This rank reads the log by itself; what it lacks makes it end, and all begin again."""
        world, manifest = self.world, self.team.manifest
        if "rollback-one-target" in self.off:
            places = world.rollback_places(manifest)
            target = places[r % len(places)]
        base = next((b for b in reversed(world.bases_by_age()) if b.num <= target[0]), None)
        if base is None:
            return self.die("the version to go back to is retired")
        image, versions = base, world.versions_after(manifest, base)[0]
        up_to, later = [v for v in versions if v[0].num <= target[0]], [v for v in versions if v[0].num > target[0]]
        for record, shards in up_to:
            image = image.plus(record, shards)
        net = world.net_of(image, base, [record for record, _ in versions])
        if net is None and "restore-exact" in self.off:
            net = base.net
        if (
            world.overtaken(self.team.epoch)
            or (image.num, image.chk) != target
            or ((later and later[-1][0].num) or image.num) < end
            or net is None
        ):
            return self.die("cannot read the log for a rollback")
        self.horizon = (later[-1][0] if later else image).horizon
        gone = {key for record, _ in later for _, key in record.orders}
        if "rollback-orders" in self.off:
            gone = {key for _, shards in later for s in shards for key, row in s.rows.items() if row == MARK}
        if "rollback-forgets" in self.off:
            gone, self.horizon = set(), image.horizon
        self.rows = alive({k: row for k, row in image.rows.items() if self.owns(k) and k not in gone}, self.horizon)
        self.dense, self.pos = net, {p: n for p, n in (skip_to or image.pos).items() if self.has(p)}
        self.tiers = Tiers(self, base, up_to, self.tiers.gens)
        self.tiers.restore(sorted({k for _, shards in later for s in shards for k in s.rows if self.owns(k)}))
        self.say(f"goes back to {image.num}: {self.rows}, not {gone}")
        return None

    def apply_cut(self, num, chk, parent, orders, exact, show):
        shard = Shard(
            self.team.epoch,
            num,
            self.index,
            (chk, self.index),
            self.last_shard,
            self.tiers.changes(),
            dict(self.pos),
        )
        self.pending.append(shard)
        self.last_shard, self.last_num = shard.chk, num
        self.tiers.begin_interval()
        if "generation-at-cut" not in self.off and chk % 2:
            self.tiers.open_generation(num)
        self.say(f"cuts {num}: {shard.rows} {shard.pos}")
        if self.index == 0:
            net, exact = self.capture(num, chk, exact=exact or bool(orders))
            shown = self.dense if show else None
            self.team.waiting.append(Main(self.team.epoch, num, chk, shown, net, exact, self.horizon, orders, parent))

    def capture(self, num, chk, *, exact):
        """The exact state that the version carries, or None; the version whose exact state is this one's too, or -1."""
        team, net = self.team, self.dense
        if self.world.small or (exact and team.captured[1] != net):
            team.captured = chk, net
            if not self.world.small:
                team.writing.append((chk, State(num, net, self.host)))
        return net if self.world.small else None, team.captured[0] if team.captured[1] == net else -1

    def cut_at_once(self):
        """Cut here and now, in the middle of a batch: only where no rule keeps a batch together."""
        self.team.cut()
        self.apply_cut(*self.todo.pop()[1:])

    # writing
    def write(self):
        shard = self.pending.pop(0)
        self.pen.append(shard, shown=not self.world.lagging)
        if "generation-at-cut" in self.off and shard.chk[0] % 2:
            self.tiers.open_generation(shard.num)
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

    def check_tiers(self):
        for key in self.keys:
            self.tiers.check(key)

    def check(self):
        """C1, C2, C9: between operations this rank's share is the oracle's."""
        truth = self.team.truth
        self.check_tiers()
        rows, pos = (
            {k: row for k, row in truth.rows.items() if self.owns(k)},
            {p: n for p, n in truth.pos.items() if self.has(p)},
        )
        if (self.rows, self.pos, self.dense, self.horizon) != (rows, pos, truth.dense, truth.horizon):
            raise Violation(
                f"C1: rank {self.team.epoch}/{self.index} has {self.rows} {self.pos}, truth is {rows} {pos}"
            )
