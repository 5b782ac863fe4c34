"""The tiers of one run: device, host, spill generations on their way to disk, base; recalls in flight."""

from tests.torture.commit_protocol.model.records import FEATURES, MARK, Flight
from tests.torture.commit_protocol.schedules import Violation


class Tiers:
    """What a trainer does with rows. Its state is set by the trainer that loads the log."""

    def resident(self, key):
        return self.device.get(key) or self.host.get(key)

    def alive(self, key, row):
        return row if row and row != MARK and row[2] >= self.horizon[key % FEATURES] else None

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

    def spill(self, key, row):
        if row != MARK or "forget-mark" not in self.off:
            self.queue.append((self.gens[-1], key, row))

    def flush(self):
        if self.queue:
            generation, key, row = self.queue.pop(0)
            generation.store[key] = row

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
            if len(self.side) >= self.world.side_rows and key not in self.side:
                self.cut()
            else:
                self.side[key] = tier[key][0]
        row, changed = tier.pop(key)
        if changed or "drop-unchanged" in self.off:
            self.spill(key, row)
        self.say(f"  evicts {key} {row}, {'spilled' if changed else 'dropped'}")

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
        if self.peek(key) != self.truth.rows.get(key):
            raise Violation(
                f"I1: epoch {self.epoch} recalls {key} as {self.peek(key)}, truth is {self.truth.rows.get(key)}"
            )

    def start_recall(self, key):
        if not self.resident(key) and key not in self.flights:
            self.flights[key] = Flight(list(self.gens), self.base, self.waiting(key))
            self.say(f"sends out a recall of {key}")

    def step_recall(self, key):
        """Look into one more place, or come home; anything may happen in between."""
        flight = self.flights[key]
        if flight.found is not None:
            del self.flights[key]
            if not self.resident(key) and flight.found != MARK:
                self.install(key, flight.found, False)
                self.say(f"installs the recalled {key} {flight.found}")
        elif flight.generations:
            generation = flight.generations.pop()
            if not (generation.destroyed and "recall-pins" in self.off):
                flight.found = generation.store.get(key)
        else:
            flight.found = flight.base.rows.get(key, MARK)
        if "horizon-everywhere" in self.off and flight.found:
            flight.found = self.alive(key, flight.found) or MARK

    def destroy_generations(self):
        for generation in self.gens[:-1]:
            if generation.closed <= self.base.num or ("generation-covered" in self.off and self.base.num):
                generation.destroyed = True
                self.say(f"destroys the generation closed at {generation.closed}")
        self.gens = [g for g in self.gens if not g.destroyed]

    def map_base(self):
        base = self.world.bases_by_age()[-1]
        if self.base.num < base.num <= self.last.num:
            self.base = base
            self.say(f"maps base {base.num}")
