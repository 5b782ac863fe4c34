"""How a team starts: claims, fsyncs, measures, seals."""

from tests.torture.commit_protocol.model.rank import Pen, Rank
from tests.torture.commit_protocol.model.records import MAIN, Manifest


class StartingTeam:
    """The ranks of one launch. The steps of a start are rank 0's."""

    def __init__(self, world, size, hosts):
        self.world, self.off, self.size, self.epoch, self.manifest = world, world.off, size, 0, None
        self.wanted = world.next_epoch()
        self.ranks = [Rank(self, i, hosts[i]) for i in range(size)]
        measuring = [self.look_around, self.sync_past, self.measure]
        if "fsync-then-measure" in self.off:
            measuring = [self.look_around, self.measure, self.sync_past]
        self.steps = [self.claim, self.sync_claim, *measuring, self.seal]
        if "claim-first" in self.off:
            self.steps = [*measuring, self.claim, self.sync_claim, self.seal]
        self.noted, self.held = None, False

    lead = property(lambda self: self.ranks[0])
    started = property(lambda self: not self.steps)
    running = property(lambda self: self.started and all(rank.loaded for rank in self.ranks))
    broken = property(lambda self: any(rank.dead for rank in self.ranks))
    gone = property(lambda self: all(rank.dead for rank in self.ranks))

    def together(self, ahead=0):
        """Whether a collective operation can begin."""
        return self.running and all(rank.able and len(rank.todo) <= ahead for rank in self.ranks)

    def in_hand(self):
        """Whether something waits on its way to a published version."""
        return self.started and any(
            (rank.able and (rank.todo or rank.pending or rank.unseen)) or (rank.outbox and self.lead.able)
            for rank in self.ranks
        )

    def can_cut(self):
        return not self.held and self.together(ahead=1 if {"one-step", "one-order"} & self.off else 0)

    def say(self, line):
        self.world.say(f"{self.epoch}/0 {line}")

    # start
    def advance(self):
        self.steps.pop(0)()
        if self.started:
            self.begin()

    def claim(self):
        self.epoch = self.wanted if "claim-exclusive" in self.off else self.world.next_epoch()
        self.world.note_published()
        self.world.claims[self.epoch] = self.lead.host
        self.say(f"claims epoch {self.epoch} for {self.size} ranks on hosts {[rank.host for rank in self.ranks]}")

    def sync_claim(self):
        if "claim-gaps" not in self.off:
            self.world.claims = dict.fromkeys(range(self.epoch), self.lead.host) | self.world.claims
        if "claim-fsync" not in self.off:
            self.world.claims = dict.fromkeys(self.world.claims)  # the folder's fsync takes all of them

    def look_around(self):
        self.old, self.base = self.world.manifest(), self.world.bases_by_age()[-1]

    def sync_past(self):
        if not {"fsync-then-measure", "measure-within"} & self.off:
            self.noted = {name: segment.shown for name, segment in self.world.disk.items()}
        for name, segment in self.world.disk.items():
            rule = "seal-fsync-main" if name[1] == MAIN else "seal-fsync-shards"
            if (name[0] <= self.old.epoch if not self.epoch else name[0] < self.epoch) and rule not in self.off:
                segment.synced, segment.entry = max(segment.synced, segment.shown), True

    def measure(self):
        """How far the predecessor's main chain links up from the base, with all shard records."""
        world, old, base = self.world, self.old, self.base
        noted = self.noted if self.noted is not None else {name: s.shown for name, s in world.disk.items()}
        main, last, shards, linked = [], base, {}, []
        for name, limit in world.main_files(old):
            counting = 0
            for record in world.readable(name, limit)[: noted.get(name, 0)]:
                asked = record.num > base.num
                if asked and record.parent != last.chk:
                    break
                if (
                    (asked or "base-covers" in self.off)
                    and world.shards_of(old, record, noted) is None
                    and "seal-whole" not in self.off
                ):
                    break
                last, counting = record if asked else last, counting + 1
                linked += [record] if asked else []
            main.append((name, counting))
        exact = [version for version in (base, *linked) if world.net_of(version, base, linked) is not None]
        if "cut-back" not in self.off:
            last = exact[-1]
        self.end, self.dropped = last, {record.chk for record in linked if record.num > last.num}
        main = [(name, sum(r.num <= last.num for r in world.readable(name, limit))) for name, limit in main]
        for name in world.disk:
            if name[1] != MAIN and name[0] <= old.epoch:
                limit = old.shards.get(name, 0) if name[0] < old.epoch else None
                shards[name] = sum(s.num <= last.num for s in world.readable(name, limit)[: noted.get(name, 0)])
        self.manifest = Manifest(0, main, shards, last.num, last.chk)
        world.say(f"a starter measures: the log ends at {last.num}")

    def seal(self):
        self.manifest.epoch = self.epoch
        if self.end.exact in self.world.states and "seal-state" not in self.off:
            self.world.states[self.end.exact].synced = True
        self.world.publish_manifest(self.manifest, self.dropped)

    def begin(self):
        self.truth = self.world.truths[self.manifest.chk].copy()
        self.count, self.waiting, self.executed, self.plan = 0, [], (), []
        self.reported, self.synced = {}, dict.fromkeys(range(self.size), self.manifest.num)
        self.published = self.cut_num = self.durable = self.manifest.num
        self.last_chk = self.cut_chk = self.manifest.chk
        self.pen = Pen(self.world, self.epoch, MAIN, self.lead.host)
        self.pen.newest = self.pen.noted = self.manifest.num

    def continue_from(self, image, net):
        """What rank 0 has read: the newest exact state, and which are on disk."""
        self.captured, self.safe, self.writing, self.sent = (image.exact, net), {image.exact}, [], [image]
