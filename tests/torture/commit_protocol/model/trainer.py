"""One run of a trainer: it starts in four steps, learns, publishes, rolls back; it may be a zombie and not know it."""

from tests.torture.commit_protocol.model.records import KEEP_BASES, KEYS, MARK, Generation, Manifest, Segment
from tests.torture.commit_protocol.model.versions import Versions
from tests.torture.commit_protocol.schedules import Gone, Violation


class Trainer(Versions):
    """One run: four steps of starting, then learning, evicting, cutting, appending. It may be a zombie unknowingly."""

    def __init__(self, world):
        self.world, self.off, self.steps_done, self.epoch, self.dead = world, world.off, 0, 0, False
        self.steps = [self.claim, self.measure, self.seal, self.load]
        if "claim-first" in self.off:
            self.steps[:2] = self.measure, self.claim

    @property
    def running(self):
        return self.steps_done == 4 and not self.dead

    def advance(self):
        self.steps[self.steps_done]()
        self.steps_done += 1

    def say(self, line):
        self.world.say(f"epoch {self.epoch} {line}")

    def look(self):
        """False, and the end of this process, once a higher epoch is claimed."""
        self.dead = self.dead or max(self.world.claims) > self.epoch
        return not self.dead

    # start

    def claim(self):
        self.epoch = max(self.world.claims) + 1
        self.world.claims.add(self.epoch)
        self.say("is claimed")

    def measure(self):
        """How far the predecessor's files link up, as far as they can be read now."""
        world, old = self.world, self.world.manifest()
        base = world.bases_by_age()[-1]
        records, _ = world.after(old, base)
        linked, exact = [base, *records], [v for v in [base, *records] if world.net_of(v, base, records) is not None]
        end = linked[-1] if "cut-back" in self.off else exact[-1]
        self.end, self.dropped = end, {r.chk for r in records if r.num > end.num}
        sealed, linked = [s for s in old.sealed if s[0] in world.segments], {r.chk for r in records}
        for name in world.files_of(old.epoch):
            counting = [
                not r.torn and r.num <= end.num and (r.num <= base.num or r.chk in linked)
                for r in world.segments[name].records
            ]
            sealed.append((name, [*counting, False].index(False)))
        sealed = [(name, min(n, sum(r.num <= end.num for r in world.segments[name].records))) for name, n in sealed]
        self.manifest = Manifest(0, sealed, {**old.last, old.epoch: end.num}, end.num)
        world.say(f"a starter measures: the log ends at {end.num}, {len(self.dropped)} versions after it are dropped")

    def seal(self):
        self.manifest.epoch = self.epoch
        for name, n in self.manifest.sealed:
            if name in self.world.segments and "seal-fsync" not in self.off:
                self.world.segments[name].synced = max(self.world.segments[name].synced, n)
        if self.end.exact in self.world.states and "seal-state" not in self.off:
            self.world.states[self.end.exact].synced = True
        self.world.publish_manifest(self.manifest, self.dropped)

    def load(self):
        self.count, self.files, self.plan, self.gens = 0, 0, [], []
        for t in self.world.trainers:
            if t.running and t.epoch > self.epoch and "own-spill" in self.off:
                t.gens = [Generation(closed=g.closed) for g in t.gens]
        self.durable = self.manifest.tip
        self.new_file()
        self.reload()

    def new_file(self):
        self.file = (self.epoch, self.files)
        self.files += 1
        self.segment = self.world.segments[self.file] = Segment()  # kept open: a zombie's may be unlinked under it

    def reload(self):
        """Map the newest base, replay what follows as changed rows; memory, spill and recalls start empty."""
        if not self.look():
            return
        base = self.world.bases_by_age()[-1]
        records, whole = self.world.after(self.manifest, base)
        end = records[-1] if records else base
        if not whole or end.num < self.manifest.tip:
            raise Gone(f"I2: epoch {self.epoch} cannot load: the log ends at {end.num}, sealed at {self.manifest.tip}")
        self.base, self.device, self.host = base, {}, {}  # key -> [row, changed], oldest first
        self.gens = [Generation()] if "fresh-spill" not in self.off else [*self.gens, Generation()]
        self.queue, self.flights, self.pending, self.held = [], {}, [], None
        self.touched, self.side, self.marks, self.executed = set(), {}, set(), ()
        self.last = self.published = end
        net = self.world.net_of(end, base, records)
        if net is None:
            raise Gone(f"I2: epoch {self.epoch} cannot load: the exact state of {end.num} is not there")
        self.horizon, self.net, self.pos = end.horizon, net, end.pos
        self.shown = next((r.dense for r in reversed(records) if r.dense is not None), base.dense)
        self.captured, self.safe = (end.exact, net), {end.exact}  # the newest exact state; those on disk
        self.writing, self.sent = [], [end]  # states on their way to disk; records published
        self.done = dict.fromkeys((i for i, _ in base.orders if "order-in-base" not in self.off), 0)
        for record in records:
            for key, row in record.rows.items():
                self.device.pop(key, None), self.host.pop(key, None)
                if row == MARK:
                    self.spill(key, MARK)
                else:
                    self.install(key, row, changed="changed-after-restart" not in self.off)
            self.done.update((i, record.num) for i, _ in record.orders)
        self.truth = self.world.truths[end.chk].copy()
        self.say(f"maps base {base.num} and replays to {end.num}")

    def roll_back(self, r):
        """Append a version that restores an older one, then load from the log as after a crash."""
        self.cut()
        self.append_all()
        image, records = self.restorable()
        self.restore(image, records, r % (len(records) + 1))

    def restorable(self):
        """The oldest kept base, and what follows."""
        image = self.world.bases_by_age()[-KEEP_BASES:][0]
        records, whole = self.world.after(self.manifest, image)
        if not whole:
            raise Gone(f"I6: versions after the oldest kept base {image.num} are gone")
        return image, records

    def restore(self, base, records, chosen, skip_to=None):
        """Restore the newest exact version of the chosen ones; go on at its position, or skip to another."""
        image, net, count = base, base.net, 0
        reached = image
        for i, record in enumerate(records[:chosen]):
            reached = reached.plus(record)
            found = self.world.net_of(record, base, records)
            if found is not None or "restore-exact" in self.off:
                image, net, count = reached, net if found is None else found, i + 1
        later = records[count:]
        gone = {key for record in later for _, key in record.orders}
        if "rollback-orders" in self.off:
            gone = {key for record in later for key, row in record.rows.items() if row == MARK}
        if "rollback-forgets" in self.off:
            gone = set()
        rows = {k: MARK if k in gone else image.rows.get(k, MARK) for record in later for k in record.rows}
        self.truth.back_to(self.world.truths[image.chk])
        pos = image.pos
        if skip_to is not None:
            pos, self.truth.pos = skip_to, skip_to
            self.truth.skipped |= set(range(image.pos, skip_to))
        record = self.record(rows, inside=True, show=True, net=net, pos=pos)
        self.say(f"rolls back to {image.num} as {record.num}: {rows}")
        self.pending.append((record, False))
        self.append_all()
        self.reload()

    def gate_back(self):
        """The held version is thrown away, samples since the newest good exact version are skipped; orders executed in
        the held version are executed again."""
        self.append_all()
        good, pos = self.published, self.held.pos
        self.last, self.executed, self.truth, self.horizon = good, (), self.world.truths[good.chk].copy(), good.horizon
        image, records = self.restorable()
        self.restore(image, records, len(records), skip_to=pos)

    # files that are not only its own

    def plan_unlink(self):
        """What may go, decided now; unlinked later, whatever this process has become by then."""
        world, kept = self.world, self.world.bases_by_age()[-KEEP_BASES:]
        limit = kept[0 if "retire-oldest-kept" not in self.off else -1].num
        safe = self.durable if "order-durable" not in self.off else self.published.num
        self.plan = [
            (world.segments, n)
            for n, s in world.segments.items()
            if n[0] <= self.epoch and n != self.file and all(r.num <= limit for r in s.records)
        ]
        self.plan += [(world.bases, chk) for chk, base in world.bases.items() if base.num < kept[0].num]
        keep = self.sent[0].exact  # what a restart goes back to
        if "state-kept" in self.off:
            keep = max(world.states, default=-1)
        oldest = (
            world.states[keep].num
            if keep in world.states
            else next((r.num for r in self.sent[:1] if r.num <= self.durable), 0)
        )
        self.plan += [(world.states, chk) for chk, state in world.states.items() if chk != keep and state.num < oldest]
        self.plan += [(world.orders, i) for i in world.orders if self.done.get(i) is not None and self.done[i] <= safe]

    def unlink(self):
        for shelf, name in self.plan:
            if name in shelf:
                self.world.trash.append((shelf, name, shelf.pop(name)))
                kinds = {
                    id(self.world.segments): "segment",
                    id(self.world.bases): "base",
                    id(self.world.states): "state",
                }
                self.say(f"unlinks {kinds.get(id(shelf), 'order')} {name}")
        self.plan = []

    def check(self):
        """I1 and I2 at every instant: all tiers together are the dictionary."""
        for key in range(KEYS):
            if self.peek(key) != self.truth.rows.get(key):
                raise Violation(
                    f"I1: epoch {self.epoch} would read {key} as {self.peek(key)}, truth is {self.truth.rows.get(key)}"
                )
        found, true = (self.net, self.shown, self.pos, self.horizon), self.truth
        if found != (true.dense, true.shown, true.pos, true.horizon):
            raise Violation(f"I2: dense weights, position or horizon of epoch {self.epoch} are not the truth")
