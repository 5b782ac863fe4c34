"""The tiers of one rank: device, host, spill generations on their way to disk, base; recalls in flight."""

import random

from tests.torture.commit_protocol.model.records import FEATURES, MARK, Flight, Generation
from tests.torture.commit_protocol.schedules import Violation


class Tiers:
    """Where the rows of one rank are. What they must be is in `rank.rows`."""

    def __init__(self, rank, base, versions, gens=()):
        """Map a base, and replay the versions after it as changed rows; memory, spill and recalls start empty."""
        self.rank, self.world, self.off, self.base = rank, rank.world, rank.off, base
        self.device, self.host, self.queue, self.flights = {}, {}, [], {}  # key -> [row, changed], oldest first
        self.touched, self.side = set(), {}
        self.gens = [*gens, Generation()] if "fresh-spill" in self.off else [Generation()]
        size = rank.team.size  # a step has at most two keys for each rank, and they must fit
        self.side_rows = max(self.world.side_rows, 2 * size if size > 1 else 0)
        for _, shards in versions:
            for key, row in ((key, row) for shard in shards for key, row in shard.rows.items() if rank.owns(key)):
                self.drop(key)
                if row == MARK:
                    self.spill(key, MARK)
                else:
                    self.install(key, row, changed="changed-after-restart" not in self.off)

    def restore(self, keys):
        """After a rollback: these keys, changed since, have the rank's rows again, and that is a change."""
        for key in keys:
            self.drop(key)
            row = self.rank.rows.get(key, MARK)
            self.spill(key, row)
            self.touched.add(key)
            self.side[key] = row

    # reading
    def resident(self, key):
        return self.device.get(key) or self.host.get(key)

    def alive(self, key, row):
        return row if row and row != MARK and row[2] >= self.rank.horizon[key % FEATURES] else None

    def peek(self, key):
        """The value of a key over all tiers; moves nothing."""
        if slot := self.resident(key):
            return slot[0] if "horizon-everywhere" in self.off else self.alive(key, slot[0])
        return self.alive(key, self.below(key))

    def below(self, key):
        if waiting := self.waiting(key):
            return waiting
        for generation in reversed(self.gens):
            if key in generation.store:
                return generation.store[key]
        return self.base.rows.get(key)

    def waiting(self, key):
        """The newest write of a key that is not yet in the spill."""
        return next((row for _, k, row in reversed(self.queue) if k == key and "queue-first" not in self.off), None)

    # moving
    def drop(self, key):
        self.device.pop(key, None)
        self.host.pop(key, None)

    def spill(self, key, row):
        if row != MARK or "forget-mark" not in self.off:
            self.queue.append((self.gens[-1], key, row))

    def install(self, key, row, changed, pinned=()):
        self.device[key] = [row, changed]
        if len(self.device) > self.world.device_rows:
            oldest = next(k for k in self.device if k != key and k not in pinned)
            if self.world.host_rows:
                self.host[oldest] = self.device.pop(oldest)
                if len(self.host) > self.world.host_rows:
                    self.evict(next(iter(self.host)))
            else:
                self.evict(oldest)

    def evict(self, key):
        tier = self.device if key in self.device else self.host
        if key in self.touched and "side-buffer" not in self.off:
            if len(self.side) >= self.side_rows and key not in self.side:
                self.rank.cut_at_once()
            else:
                self.side[key] = tier[key][0]
        row, changed = tier.pop(key)
        if changed or "drop-unchanged" in self.off:
            self.spill(key, row)

    def make_resident(self, key, pinned):
        if key in self.device:
            self.device[key] = self.device.pop(key)
        elif key in self.host:
            self.install(key, *self.host.pop(key), pinned)
        else:
            flight = self.flights.get(key)
            landed = flight and flight.found is not None
            row = self.alive(key, flight.found if landed else self.below(key))
            if landed or "recall-yields" not in self.off:
                self.flights.pop(key, None)
            self.install(key, row, row is None, pinned)
        self.check(key)

    def write(self, key, row):
        """A row in memory gets a new value."""
        self.device[key] = [row, True]
        self.touched.add(key)

    def forget(self, key):
        self.drop(key)
        if "recall-yields" not in self.off:
            self.flights.pop(key, None)
        self.spill(key, MARK)
        if "forget-writes" not in self.off:
            self.touched.add(key)
            self.side[key] = MARK

    def sweep(self):
        """Dead rows make room; without the rule that no one reads them, they just go."""
        for key in [k for k in (*self.device, *self.host) if not self.alive(k, self.resident(k)[0])]:
            if "horizon-everywhere" in self.off:
                self.drop(key)
                self.touched.discard(key)
            elif self.has_room:
                self.evict(key)

    @property
    def has_room(self):
        """Whether a touched row may leave memory without a cut."""
        return len(self.side) < self.side_rows

    def changes(self):
        """The rows that a version cut now must tell."""
        rows = {}
        for key in self.touched:
            slot, aside = self.resident(key), self.side.get(key)
            if aside and (not slot or "newest-copy" in self.off):
                rows[key] = aside
            elif slot:
                rows[key] = slot[0] or (key, 0, 0)
        return rows

    def begin_interval(self):
        self.touched, self.side = set(), {}

    def open_generation(self, num):
        self.gens[-1].closed = num
        self.gens.append(Generation())

    # recalls, the spill's writer, and the base
    def start_recall(self, key):
        if not self.resident(key) and key not in self.flights:
            self.flights[key] = Flight(list(self.gens), self.base, self.waiting(key))

    def step_recall(self, key):
        """Look into one more place, or come home; anything may happen in between."""
        flight = self.flights[key]
        if flight.found is not None:
            del self.flights[key]
            if not self.resident(key) and flight.found != MARK and self.has_room:
                self.install(key, flight.found, False)
        elif flight.generations:
            generation = flight.generations.pop()
            if not (generation.destroyed and "recall-pins" in self.off):
                flight.found = generation.store.get(key)
        else:
            flight.found = flight.base.rows.get(key, MARK)
        if "horizon-everywhere" in self.off and flight.found:
            flight.found = self.alive(key, flight.found) or MARK

    def flush(self):
        if self.queue:
            generation, key, row = self.queue.pop(0)
            generation.store[key] = row

    def map_base(self):
        base = self.world.bases_by_age()[-1]
        if self.base.num < base.num <= self.rank.last_num:
            self.base = base
            self.rank.say(f"maps base {base.num}")

    def destroy_generations(self):
        for generation in self.gens[:-1]:
            if generation.closed <= self.base.num or ("generation-covered" in self.off and self.base.num):
                generation.destroyed = True
                self.rank.say(f"destroys the generation closed at {generation.closed}")
        self.gens = [g for g in self.gens if not g.destroyed]

    MOVES = ("start", "start", "step", "step", "step", "evict", "flush", "flush", "flush", "sweep", "map", "destroy")

    def move(self, r):
        """A few of the small things that happen between two batches, in any order."""
        rng = random.Random(r)
        for _ in range(rng.choice([1, 2, 5, 15])):
            move, resident = rng.choice(self.MOVES), [*self.device, *self.host]
            if move == "start":
                self.start_recall(rng.choice(self.rank.keys))
            elif move == "step" and self.flights:
                self.step_recall(rng.choice([*self.flights]))
            elif move == "evict" and resident and self.has_room:
                self.evict(rng.choice(resident))
            elif move == "flush":
                self.flush()
            elif move == "sweep" and rng.random() < 0.3:
                self.sweep()
            elif move == "map":
                self.map_base()
            elif move == "destroy":
                self.destroy_generations()
        self.rank.check_tiers()

    def check(self, key):
        """C9."""
        if self.peek(key) != self.rank.rows.get(key):
            raise Violation(
                f"C9: {self.rank.name} would read {key} as {self.peek(key)}, it is {self.rank.rows.get(key)}"
            )
