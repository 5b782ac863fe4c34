"""The disk, the processes, the oracle, and the hand that moves them."""

import random

from tests.torture.commit_protocol.model.readers import Follower, Merger
from tests.torture.commit_protocol.model.records import FEATURES, KEYS, Manifest, Truth, Version
from tests.torture.commit_protocol.model.trainer import Trainer
from tests.torture.commit_protocol.schedules import Gone, Violation


class World:
    """The disk, the processes, the oracle, and the hand that moves them."""

    def __init__(self, seed, off=(), trace=None):
        rng = random.Random(seed)
        self.off, self.trace = frozenset(off), trace
        self.device_rows, self.host_rows, self.side_rows = (
            rng.choice([2, 3]),
            rng.choice([0, 1, 3]),
            rng.choice([2, 3, 6]),
        )
        self.hot, self.samples = rng.choice([3, 6, KEYS]), []
        for i in range(rng.choice([20, 50, 100])):
            keys = tuple(dict.fromkeys(rng.randrange(self.hot) for _ in range(rng.choice([1, 1, 2]))))
            self.samples.append((keys, max(0, 2 * i - rng.choice([0, 0, 0, 3, 9]))))  # some come late
        self.claims, self.manifests, self.segments = {0}, {0: Manifest(0, [], {0: 0}, 0)}, {}
        self.bases, self.orders, self.trash = {0: Version(0, 0, 0, {}, net=0, exact=0)}, {}, []
        self.states, self.dropped, self.small = (
            {},
            set(),
            rng.random() < 0.25,
        )  # small: every version carries its exact state
        self.versions, self.truths, self.submitted, self.corrupted = 0, {0: Truth({})}, 0, 0
        self.promised, self.lost, self.revoked = 0, set(), set()  # durable number; gone with the power; beyond a seal
        self.trainers, self.mergers, self.followers = [], [Merger(self), Merger(self)], [Follower(self), Follower(self)]
        self.spawn(3)

    def say(self, line):
        if self.trace is not None:
            self.trace.append(line)

    # what a reader makes of the disk

    def manifest(self):
        return self.manifests[max(self.manifests)]

    def files_of(self, epoch):
        return [name for name in self.segments if name[0] == epoch]

    def bases_by_age(self):
        if not self.bases:
            raise Gone("I6: no base is left")
        return sorted(self.bases.values(), key=lambda base: base.num)

    def after(self, manifest, place, trusting=False):
        """(The records that follow `place`, each on its parent; False if something else is behind them.)"""
        files = manifest.sealed
        if "sealed-only" in self.off:
            files = [(name, None) for name in sorted(self.segments) if name[0] < manifest.epoch]
        want, out = place.chk, []
        for name, n in files + [(name, None) for name in self.files_of(manifest.epoch)]:
            for record in self.segments[name].records[:n] if name in self.segments else ():
                if record.torn:
                    break
                if record.num > place.num:
                    if record.parent != want and not trusting:
                        return out, False
                    out.append(record)
                    want = record.chk
        return out, True

    def net_of(self, version, base, records):
        """The exact state of the net at a version, if it is there: in it, in its file, or in an earlier version."""
        for place in (version, *records, base):
            if place.net is not None and (place is version or place.exact == version.exact != -1):
                return place.net
        return self.states[version.exact].net if version.exact in self.states else None

    def fresh_reader(self):
        """Where a reader that starts now ends; the log must be whole and true for it."""
        manifest, image = self.manifest(), self.bases_by_age()[-1]
        for record in self.after(manifest, image)[0]:
            image = image.plus(record)
        truth = self.truths[image.chk]
        if (image.rows, image.dense, image.pos, image.horizon) != (truth.rows, truth.shown, truth.pos, truth.horizon):
            raise Violation(f"I3: base and segments up to {image.num} are not the truth")
        if image.num < max(manifest.tip, self.promised):
            raise Violation(f"I2: a reader's log ends at {image.num}; sealed {manifest.tip}, durable {self.promised}")
        return image.chk

    def publish_manifest(self, manifest, dropped):
        self.manifests[manifest.epoch] = manifest
        self.dropped |= dropped
        self.say(f"epoch {manifest.epoch} seals the log at {manifest.tip}")
        if manifest.epoch < max(self.claims):
            return  # nobody may use it
        self.revoked = {
            r.chk
            for s in self.segments.values()
            for r in s.records
            if r.epoch < manifest.epoch and r.num > manifest.last.get(r.epoch, -1)
        }
        for follower in self.followers:
            if follower.served:
                follower.check()
        self.fresh_reader()

    # what happens; each takes one random number

    def pick(self, r, need):
        """Mostly the trainer of the highest epoch, else any."""
        able = sorted((t for t in self.trainers if not t.dead and need(t)), key=lambda t: t.epoch)
        return able and (able[-1] if r % 4 else able[r // 4 % len(able)])

    def let(self, t, verb, *args):
        try:
            verb(*args)
        except Gone:
            t.dead = True
            if not t.epoch or t.epoch >= self.manifest().epoch:
                raise

    def spawn(self, r):
        self.trainers = [t for t in self.trainers if not t.dead]
        if len(self.trainers) < (3 if r // 4 % 5 == 0 else 1):  # the odd one takes over from a living one
            self.trainers.append(t := Trainer(self))
            while r % 4 == 3 and not t.dead and not t.running:
                self.let(t, t.advance)

    def advance(self, r):
        if t := self.pick(r, lambda t: t.steps_done < 4):
            self.let(t, t.advance)

    def submit(self, r):
        kind = ("forget", "forget", "forget", "rule", "rule", "rollback")[r % 6]
        self.submitted += 1
        self.orders[self.submitted] = (kind, r // 6 % (FEATURES if kind == "rule" else self.hot), r // 100 % 9 - 2)

    def kill(self, r):
        if t := self.pick(r, lambda t: True):
            if t.running and t.pending and r // 8 % 2:
                t.tear()
            t.dead = True
            t.say("is killed")

    def power_loss(self, r):
        """The trainers' machine dies; of what was not fsynced each file keeps any prefix; the unlinked may be back."""
        rng = random.Random(r)
        self.say("power loss")
        for process in self.trainers:
            process.dead = True
        for merger in self.mergers:
            merger.job = None
        for segment in self.segments.values():
            self.lost |= {record.chk for record in segment.records}
            del segment.records[rng.randint(segment.synced, len(segment.records)) :]
        for chk in [chk for chk, state in self.states.items() if not state.synced and rng.random() < 0.5]:
            del self.states[chk]
        for shelf, name, thing in self.trash:
            if shelf is not self.bases and rng.random() < 0.4:
                shelf[name] = thing
        self.segments, self.orders = dict(sorted(self.segments.items())), dict(sorted(self.orders.items()))
        self.trash.clear()

    def corrupt(self, r):
        """The newest base turns out to be damaged and is given up, once."""
        bases = self.bases_by_age()
        if len(bases) > 1 and not self.corrupted:
            self.corrupted = self.bases.pop(bases[-1].chk).num
            self.say(f"base {self.corrupted} is damaged")

    def merge(self, r):
        if not self.mergers[r % 2].job:
            self.mergers[r % 2].begin(r // 2)

    def finish(self, r):
        if self.mergers[r % 2].job:
            self.mergers[r % 2].finish()
            self.fresh_reader()

    def read(self, r):
        self.followers[r % 2].read()

    def use(self, r):
        if self.followers[r % 2].inbox:
            self.followers[r % 2].use(r // 2 % 3 + 1)

    def adopt(self, r):
        self.followers[r % 2].adopt()

    def doubt(self, r):
        """A follower meets a flipped bit and starts again, or a new one takes its place."""
        self.followers[r % 2].doubt = True
        if r // 2 % 3 == 0:
            self.followers[r % 2] = Follower(self)

    def evict(self, t, r):
        if resident := [*t.device, *t.host]:
            t.evict(resident[r % len(resident)])

    def step_recall(self, t, r):
        if t.flights:
            t.step_recall([*t.flights][r % len(t.flights)])

    def tear(self, t, r):
        if t.pending:
            t.tear()
            if "new-file-after-torn" not in self.off:
                t.roll()

    def release(self, t, r):
        if t.held:
            t.pending.append((t.held, False))
            t.held = None

    def execute(self, t, r):
        waiting = [i for i in self.orders if i not in t.done]
        if waiting and not t.held:
            t.execute(waiting[r % len(waiting)])

    def settle(self, r):
        """The end: a last trainer learns the rest alone, followers catch up; everything has counted exactly once."""
        self.say("-- the end: a last trainer, alone")
        for t in self.trainers:
            t.dead = True
        last = Trainer(self)
        while not last.running:
            last.advance()
        while last.pos < len(self.samples) or any(i not in last.done for i in self.orders):
            self.execute(last, 0)
            last.train()
            last.check()
        last.cut(exact=True, show=True)
        last.append_all()
        while last.writing:
            last.write_state()
        last.fsync()
        self.fresh_reader()
        for follower in self.followers:
            follower.inbox = None
            while not follower.served or follower.served.version.chk != last.last.chk:
                follower.read()
                follower.use()
        dense = 0
        for i in range(len(self.samples)):
            dense = dense * 31 + i + 1 if i not in last.truth.skipped else dense
        if (last.pos, last.net) != (len(self.samples), dense):
            raise Violation("I2: some sample is not counted exactly once")
        if sorted(last.truth.orders) != [*range(1, self.submitted + 1)]:
            raise Violation(f"I2: {self.submitted} orders submitted, executed: {last.truth.orders}")

    def act(self, name, r):
        """Let one thing happen; nothing that anyone reads may be wrong afterwards."""
        if name in BY_OTHERS:
            BY_OTHERS[name][1](self, r)
        elif t := self.pick(r, lambda t: t.running):
            _, disk, verb = BY_TRAINER[name]
            zombie = t.epoch < self.manifest().epoch
            before = self.fresh_reader() if disk and zombie else None
            self.let(t, verb, self, t, r // 16)
            if ((disk and zombie) or name == "unlink") and self.fresh_reader() != before and zombie:
                raise Violation(f"I4: epoch {t.epoch}, a zombie, changes what is read")
            if t.running:
                t.check()


BY_TRAINER = {  # name: (weight, does it change the disk, what it does)
    "train": (40, False, lambda w, t, r: t.train()),
    "start_recall": (14, False, lambda w, t, r: t.start_recall(r % w.hot)),
    "step_recall": (12, False, World.step_recall),
    "evict": (6, False, World.evict),
    "flush": (30, False, lambda w, t, r: t.flush()),
    "sweep": (2, False, lambda w, t, r: t.sweep()),
    "cut": (
        14,
        False,
        lambda w, t, r: t.held or t.cut(generation=r % 2 == 0, exact=r // 2 % 4 == 0, show=r // 8 % 2 == 0),
    ),
    "write_state": (12, True, lambda w, t, r: t.write_state()),
    "hold": (1, False, lambda w, t, r: t.held or t.cut(generation=r % 2 == 0, hold=True)),
    "release": (6, False, World.release),
    "gate_back": (4, True, lambda w, t, r: t.held and t.gate_back()),
    "append": (20, True, lambda w, t, r: t.pending and t.append()),
    "tear": (1, True, World.tear),
    "roll": (3, True, lambda w, t, r: t.roll()),
    "fsync": (10, True, lambda w, t, r: t.fsync()),
    "map_base": (10, False, lambda w, t, r: t.map_base()),
    "destroy": (16, False, lambda w, t, r: t.destroy_generations()),
    "plan_unlink": (6, False, lambda w, t, r: t.plan_unlink()),
    "unlink": (6, True, lambda w, t, r: t.unlink()),
    "execute": (5, True, World.execute),
}
BY_OTHERS = {
    "spawn": (12, World.spawn),
    "advance": (8, World.advance),
    "submit": (4, World.submit),
    "kill": (0.5, World.kill),
    "power_loss": (0.25, World.power_loss),
    "corrupt": (0.3, World.corrupt),
    "merge": (12, World.merge),
    "finish": (12, World.finish),
    "read": (16, World.read),
    "use": (16, World.use),
    "adopt": (6, World.adopt),
    "doubt": (1, World.doubt),
    "settle": (0, World.settle),
}
