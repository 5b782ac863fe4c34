"""The disk, the processes and the oracle; what a reader makes of the disk."""

import random

from tests.torture.commit_protocol.model.readers import Follower, Merger
from tests.torture.commit_protocol.model.records import FEATURES, KEYS, MAIN, PARTITIONS, Image, Manifest, Truth
from tests.torture.commit_protocol.schedules import Gone, Violation


class Disk:
    """The disk, the processes and the oracle."""

    def __init__(self, seed, off=(), trace=None):
        rng = random.Random(seed)
        self.off, self.trace = frozenset(off), trace
        self.lagging = rng.random() < 0.4  # a file system where writes reach other hosts later
        self.keep_bases = rng.choice([1, 2, 2])
        self.device_rows, self.host_rows, self.side_rows = (
            rng.choice([2, 3]),
            rng.choice([0, 1, 3]),
            rng.choice([2, 3, 6]),
        )
        self.small = rng.random() < 0.25  # every version carries its exact state
        self.hot, self.total = rng.choice([3, 5, KEYS]), rng.choice([20, 60, 120])
        self.stream = {p: [] for p in range(PARTITIONS)}
        for i in range(self.total):
            keys = tuple(dict.fromkeys(rng.randrange(self.hot) * 5 % KEYS for _ in range(rng.choice([1, 1, 2]))))
            self.stream[rng.randrange(PARTITIONS)].append(
                (i, keys, max(0, 2 * i - rng.choice([0, 0, 0, 3, 9])))
            )  # some come late
        self.claims, self.manifests, self.disk = (
            {0: None},
            {0: Manifest(0, [], {}, 0, 0)},
            {},
        )  # claims: epoch -> host, None once fsynced
        self.bases, self.unsynced_bases, self.orders, self.trash = {0: Image()}, {}, {}, []
        self.states, self.dropped = {}, set()  # exact states, by version; versions that a start went back over
        self.checksums, self.truths, self.mains, self.numbers = 0, {0: Truth()}, {}, {}
        self.promised, self.submitted, self.corrupted, self.lost = {0}, 0, False, set()
        self.teams, self.mergers, self.followers = (
            [],
            [Merger(self, 0), Merger(self, 1)],
            [Follower(self), Follower(self)],
        )
        self.first_launch = 3 + 4 * rng.randrange(1 << 16)

    def say(self, line):
        if self.trace is not None:
            self.trace.append(line)

    def next_checksum(self):
        self.checksums += 1
        return self.checksums

    def note_number(self, record, who):
        if self.numbers.setdefault((record.num, who), record.chk) != record.chk:
            raise Violation(f"C7: number {record.num} is used twice")

    def clamp(self, horizon):
        """What a touch raises last_seen to."""
        return (0,) * FEATURES if "horizon-clamp" in self.off else horizon

    # what a reader makes of the disk
    def next_epoch(self):
        return max(*self.claims, *self.manifests, 0) + 1

    def overtaken(self, epoch):
        """One look, for one name: claims have no gaps."""
        return epoch + 1 in self.claims

    def manifest(self):
        return self.manifests[max(self.manifests)]

    def bases_by_age(self):
        if not self.bases:
            raise Gone("C5: no base is left")
        return sorted(self.bases.values(), key=lambda base: base.num)

    def readable(self, name, limit=None):
        """The records of a file up to the first that is not whole."""
        if name not in self.disk:
            return []
        records = self.disk[name].records[: self.disk[name].shown][:limit]
        return records[: next((i for i, record in enumerate(records) if record.torn), None)]

    def main_files(self, manifest):
        sealed = manifest.main
        if "sealed-only" in self.off:
            sealed = [(n, None) for n in sorted(self.disk) if n[1] == MAIN and n[0] < manifest.epoch]
        return sealed + [(n, None) for n in sorted(self.disk) if n[:2] == (manifest.epoch, MAIN)]

    def main_after(self, manifest, place, trusting=False):
        """(The version records after `place`, each on its parent; False if what stands behind them does not fit.)"""
        want, out = place.chk, []
        for name, limit in self.main_files(manifest):
            for record in self.readable(name, limit):
                if record.num > place.num:
                    if record.parent != want and not trusting:
                        return out, False
                    out.append(record)
                    want = record.chk
        return out, True

    def find_shard(self, manifest, record, rank, chk, noted=None):
        for name in sorted(n for n in self.disk if n[:2] == (record.epoch, rank)):
            limit = noted.get(name, 0) if noted is not None else None
            if "seal-shards" not in self.off and record.epoch < manifest.epoch:
                limit = min(manifest.shards.get(name, 0), limit if limit is not None else 1 << 60)
            for shard in self.readable(name, limit):
                if shard.num == record.num and (shard.chk == chk or "shard-checksum" in self.off):
                    before = self.mains.get(record.parent)
                    if (
                        "shard-parent" not in self.off
                        and before
                        and before.epoch == record.epoch
                        and dict(before.shards).get(rank) != shard.parent
                    ):
                        return None
                    return shard
        return None

    def shards_of(self, manifest, record, noted=None):
        """All shard records of a version, or None."""
        found = [self.find_shard(manifest, record, rank, chk, noted) for rank, chk in record.shards]
        return None if None in found else found

    def versions_after(self, manifest, place):
        """([(version record, shard records)] after `place`, as far as they are whole; whether that is all there is.)"""
        records, fits = self.main_after(manifest, place)
        found = [(record, self.shards_of(manifest, record)) for record in records]
        whole = next((i for i, (_, shards) in enumerate(found) if shards is None), None)
        return found[:whole], fits and whole is None

    def net_of(self, version, base, records):
        """The exact state of the net at a version, if it is there: in it, in its file, or in an earlier version."""
        for place in (version, *records, base):
            if place.net is not None and (place is version or place.exact == version.exact != -1):
                return place.net
        return self.states[version.exact].net if version.exact in self.states else None

    def rollback_places(self, manifest):
        """The versions that rank 0 may go back to: what is kept and exact, as (number, checksum)."""
        kept = [(base, *self.versions_after(manifest, base)) for base in self.bases_by_age()[-self.keep_bases :]]
        base, versions, _ = next((k for k in kept if k[2]), kept[-1])
        records = [record for record, _ in versions]
        if "restore-exact" not in self.off:
            records = [record for record in records if self.net_of(record, base, records) is not None]
        return [(version.num, version.chk) for version in (base, *records)]

    def compare(self, image, who):
        truth = self.truths[image.chk]
        if (image.rows, image.pos, image.dense, image.horizon) != (truth.rows, truth.pos, truth.shown, truth.horizon):
            raise Violation(f"{who} at {image.num}: {image.rows} {image.pos}, truth is {truth.rows} {truth.pos}")

    def fresh_reader(self):
        """Where a reader that starts now ends; the log must be whole and true for it."""
        manifest, image = self.manifest(), self.bases_by_age()[-1]
        for record, shards in self.versions_after(manifest, image)[0]:
            image = image.plus(record, shards)
        self.compare(image, "C2: base and segments")
        if image.num < manifest.num or not self.promised <= {*self.line(image.chk)}:
            raise Violation(f"C5: a reader's log ends at {image.num}, without what was sealed or said to be durable")
        return image.chk

    def is_lost(self, record):
        """Whether some piece of it went with the power."""
        return record.chk in self.lost or any(chk in self.lost for _, chk in record.shards)

    def line(self, chk):
        """The versions that lead to this one."""
        line = [chk]
        while line[-1] in self.mains:
            line.append(self.mains[line[-1]].parent)
        return line

    def counts(self, image):
        """Whether an older epoch's version is in the log as it is sealed, or went with the power."""
        chk, epoch = image.chk, max(e for e in self.manifests if not self.overtaken(e) or e == 0)
        line = self.line(self.manifests[epoch].chk)
        while chk not in line and chk in self.mains:
            record = self.mains[chk]
            if record.epoch >= epoch or self.is_lost(record) or chk in self.dropped:
                return True
            chk = record.parent
        return chk == image.chk

    def note_published(self):
        """What readers could use before the first claim above the ruling epoch: a later claim does not change it."""
        if not self.overtaken(self.manifest().epoch):
            base = self.bases_by_age()[-1]
            records = self.main_after(self.manifest(), base)[0]
            exact = [i for i, record in enumerate(records, 1) if self.net_of(record, base, records) is not None]
            self.must_keep, self.must_be_exact = records[: max(exact, default=0)], {records[i - 1].chk for i in exact}

    def publish_manifest(self, manifest, dropped):
        self.manifests[manifest.epoch] = manifest
        self.dropped |= dropped
        self.say(f"epoch {manifest.epoch} seals the log at {manifest.num}")
        if self.overtaken(manifest.epoch) or manifest.epoch < max(self.manifests):
            return  # nobody may use it
        kept = next((i for i, record in enumerate(self.must_keep) if self.is_lost(record)), len(self.must_keep))
        while kept and not (
            (last := self.must_keep[kept - 1]).chk in self.must_be_exact and ("state", last.exact) not in self.lost
        ):
            kept -= 1  # a start goes back to an exact version
        for record in self.must_keep[:kept]:
            if record.chk not in self.line(manifest.chk):
                raise Violation(f"C4: version {record.num} was published and is not in the log any more")
        for follower in self.followers:
            if follower.served:
                follower.check()
        self.fresh_reader()

    def throw(self, shelf, name):
        self.trash.append((shelf, name, shelf.pop(name)))
        self.say(f"{'file' if shelf is self.disk else 'base' if shelf is self.bases else 'order'} {name} is unlinked")
