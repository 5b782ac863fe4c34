"""Who makes bases and retires files, and who follows."""

from dataclasses import replace

from tests.torture.commit_protocol.model.records import MAIN
from tests.torture.commit_protocol.schedules import Violation


class Merger:
    """Makes bases and retires: begins and finishes at any time, so that anything may happen in between."""

    def __init__(self, world, host):
        self.world, self.host, self.job, self.plan_names = world, host, None, []

    def begin(self, r):
        manifest, base = self.world.manifest(), self.world.bases_by_age()[-1]
        records, _ = self.world.main_after(manifest, base) if not self.job else ([], True)
        everything = records
        if "base-durable" not in self.world.off:
            durable = max((record.durable for record in records), default=0)
            records = [record for record in records if record.num <= durable]
        records = records[: r // 2 % len(records) + 1 if records and r % 2 else None]
        net = None
        while records and (net := self.world.net_of(records[-1], base, everything)) is None:
            if "base-exact" in self.world.off:
                net = base.net
                break
            records.pop()
        if records:
            self.job = (manifest, base, records, net)

    def finish(self):
        (manifest, image, records, net), self.job = self.job, None
        for record in records:
            shards = self.world.shards_of(manifest, record)
            if shards is None:
                if "base-whole" not in self.world.off:
                    return self.world.say(f"the merger gives up: of {record.num} a shard is missing")
                shards = [s for rank, chk in record.shards if (s := self.world.find_shard(manifest, record, rank, chk))]
            image = image.plus(record, shards)
        self.world.compare(image, "C2: a base")
        self.world.bases[image.chk] = replace(image, net=net)
        if "base-fsync" in self.world.off:
            self.world.unsynced_bases[image.chk] = self.host
        self.world.say(f"the merger has written base {image.num}")
        return None

    def plan(self):
        """What may go, decided now; unlinked later, whatever has happened by then."""
        world, off, manifest = self.world, self.world.off, self.world.manifest()
        kept = world.bases_by_age()[-world.keep_bases :]
        if "retire-looks" not in off and world.overtaken(manifest.epoch):
            return
        limit = kept[-1 if "retire-oldest-kept" in off else 0].num
        newest = (
            {name[:2]: name for name in sorted(world.disk) if name[0] == manifest.epoch}
            if "retire-not-newest" not in off
            else {}
        )
        names = [n for n in world.disk if n[0] <= manifest.epoch and n not in newest.values()]
        covered = [n for n in names if all(r.num <= limit for r in world.disk[n].records[: world.disk[n].shown])]
        if "retire-own-records" in off:
            covered = [n for n in names if (n in covered and n[1] == MAIN) or (n[0], MAIN, n[2]) in covered]
        self.plan_names = [(world.bases, chk) for chk, base in world.bases.items() if base.num < kept[0].num] + [
            (world.disk, n) for n in covered
        ]

    def unlink(self, r):
        """The next few of them."""
        for shelf, name in self.plan_names[: r % 4 + 1]:
            if name in shelf:
                self.world.throw(shelf, name)
        del self.plan_names[: r % 4 + 1]


class Follower:
    """A reader on another machine. Between reading version and shard records and using them all may happen."""

    def __init__(self, world):
        self.world, self.off = world, world.off
        self.served = self.building = self.inbox = None
        self.doubt = False

    def read_main(self, r=0):
        world, manifest, place = self.world, self.world.manifest(), self.building or self.served
        newest, records = world.bases_by_age()[-1], []
        fits = place and not self.doubt
        if fits:
            records, fits = world.main_after(manifest, place, trusting="parent" in self.off)
        start = None if fits or records else newest
        self.inbox = [manifest, start, records[: r % 4 or None], [], False]  # ..., their shard records, has looked

    def read_shards(self, r=0):
        """Of all version records in hand; a shard record may not be in sight yet, or come with a flipped bit."""
        if not self.inbox:
            return
        manifest, _, records, read, looked = self.inbox
        if not looked and "look-late" in self.off:
            self.inbox[4] = not self.world.overtaken(manifest.epoch)
        blind = r % 8 if r % 5 == 0 else -1
        for record in records[len(read) :]:
            shards = []
            for rank, chk in record.shards:
                shard = self.world.find_shard(manifest, record, rank, chk)
                if shard and rank == blind:
                    flipped = replace(shard, rows=dict.fromkeys(shard.rows, (0, 0, 1 << 30)), chk=("flipped",))
                    shard = flipped if r % 3 and "shard-checksum" in self.off else None
                if shard:
                    shards.append(shard)
            if len(shards) < len(record.shards) and "whole-version" not in self.off:
                break
            read.append(shards)

    def use(self):
        if not self.inbox:
            return
        (manifest, start, records, read, looked), self.inbox = self.inbox, None
        passed = looked if "look-late" in self.off else not self.world.overtaken(manifest.epoch)
        if not passed and "reader-looks" not in self.off:
            return
        if start:
            self.building, self.doubt = start.over(start), False
            self.world.say(f"a follower starts from base {start.num}")
        image = self.building or self.served
        for record, shards in zip(records, read, strict=False):
            image = image.plus(record, shards, carries_dense="dense-carried" not in self.off)
            self.world.say(f"a follower applies {record.num}")
        if not read and not start and "base-above" not in self.off and self.world.bases_by_age()[-1].num > image.num:
            self.doubt = True
        if self.building and self.served and image.num < self.served.num:
            if "swap-when-caught-up" in self.off:
                raise Violation(f"C6: a follower goes back from {self.served.num} to {image.num}")
            self.building = image
        else:
            undone = self.lasting_orders() - {i for i, _ in image.orders}
            if self.building and undone:
                raise Violation(f"C6: orders {undone} are in {self.served.num}, not in {image.num}")
            self.served, self.building = image, None
        self.check()

    def lasting_orders(self):
        """The orders of the served version that did not go with the power."""
        mains, world = self.world.mains, self.world
        line = [mains[chk] for chk in world.line(self.served.chk) if chk in mains] if self.served else []
        lost = {i for record in line if world.is_lost(record) for i, _ in record.orders}
        return {i for i, _ in self.served.orders} - lost if self.served else set()

    def adopt(self):
        """Map a newer base at or below the served version."""
        base = self.world.bases_by_age()[-1]
        if self.served and self.served.below.num < base.num <= self.served.num:
            self.served = self.served.over(base)
            self.world.say(f"a follower at {self.served.num} adopts base {base.num}")
            self.check()

    def poll(self, r=1):
        self.read_main()
        self.read_shards(r)
        self.use()

    def check(self):
        image, world = self.served, self.world
        if not world.counts(image):
            raise Violation(f"C3: a follower reads {image.num}, which is beyond a seal")
        world.compare(image, "C2, C6: a follower")
        if image.mapped_rows() != image.rows:
            raise Violation(f"C2: a follower at {image.num} reads {image.mapped_rows()} over its base")
