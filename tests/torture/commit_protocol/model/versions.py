"""How a trainer learns, forgets, and cuts versions."""

from dataclasses import replace

from tests.torture.commit_protocol.model.records import EPOCH, FEATURES, MARK, Generation, State, Version, touch
from tests.torture.commit_protocol.model.tiers import Tiers
from tests.torture.commit_protocol.schedules import Violation


class Versions(Tiers):
    """Learning and publishing: a cut, the append of its record, the exact state that follows."""

    # learning and forgetting

    def train(self):
        if self.held or self.pos == len(self.world.samples):
            return
        truth, (keys, event_time) = self.truth, self.world.samples[self.pos]
        if len(self.side) + len(keys) > self.world.side_rows and "cut-between-batches" not in self.off:
            self.cut()
        for key in keys:
            self.make_resident(key, keys)
        for key in keys:
            clamp = 0 if "horizon-clamp" in self.off else self.horizon[key % FEATURES]
            self.device[key] = [touch(self.peek(key), key, self.pos, event_time, clamp), True]
            self.touched.add(key)
            truth.rows[key] = touch(truth.rows.get(key), key, truth.pos, event_time, clamp)
        self.net, truth.dense = self.net * 31 + self.pos + 1, truth.dense * 31 + truth.pos + 1
        self.say(f"learns sample {self.pos}: keys {keys} at {event_time}")
        self.pos += 1
        truth.pos += 1

    def forget_key(self, key):
        self.device.pop(key, None), self.host.pop(key, None)
        if "recall-yields" not in self.off:
            self.flights.pop(key, None)
        self.spill(key, MARK)
        if "forget-writes" in self.off:
            self.marks.add(key)
        else:
            self.touched.add(key)
            self.side[key] = MARK
        self.truth.rows.pop(key, None)
        self.truth.forgotten[key] = self.truth.forgotten.get(key, 0) + 1

    def forget_rule(self, feature, before):
        self.truth.forget_rule(feature, before)
        self.horizon = tuple(max(h, before) if f == feature else h for f, h in enumerate(self.horizon))
        if "horizon-everywhere" in self.off:  # as one would do it without: out of memory at once
            for tier in (self.device, self.host):
                for key in [k for k, slot in tier.items() if not self.alive(k, slot[0])]:
                    del tier[key]
                    self.touched.discard(key)

    def sweep(self):
        """Dead rows make room."""
        for key in [k for k in (*self.device, *self.host) if not self.alive(k, self.resident(k)[0])]:
            self.evict(key)

    def execute(self, order):
        kind, a, b = self.world.orders[order]
        if order in self.truth.orders:
            raise Violation(f"I2: order {order} is executed twice")
        self.say(f"executes order {order}: {kind} {a} {b}")
        self.executed += ((order, a if kind == "forget" else None),)
        self.done[order] = None
        self.truth.orders += (order,)
        if kind == "forget":
            self.forget_key(a)
        elif kind == "rule":
            self.forget_rule(a, 2 * self.pos - b)
        else:
            self.roll_back(a)

    # versions

    def record(self, rows, exact=False, show=False, inside=False, **other):
        """The next record; the interval starts anew. `exact`: its exact state is captured; `inside`: it carries it;
        `show`: it carries the parameters for followers."""
        self.count += 1
        self.world.versions += 1
        chk, net = self.world.versions, other.pop("net", self.net)
        num = self.epoch * EPOCH + self.count if "numbers-grow" not in self.off else self.last.num + 1
        if inside or exact:
            self.captured = chk, net
        if exact and not inside:
            self.writing.append((chk, State(num, net)))
        said = {"horizon": self.horizon, "pos": self.pos, "net": net if inside else None, **other}
        said["exact"] = self.captured[0] if self.captured[1] == net else -1
        if show:
            self.shown, self.truth.shown = net, self.truth.dense
        dense = self.shown if show else None
        record = Version(
            self.epoch,
            num,
            chk,
            rows,
            dense=dense,
            orders=self.executed,
            parent=self.last.chk,
            durable=self.durable,
            **said,
        )
        self.done.update((i, num) for i, _ in self.executed)
        self.touched, self.side, self.marks, self.executed, self.last = set(), {}, set(), (), record
        self.world.truths[chk] = self.truth.copy()
        return record

    def cut(self, generation=False, hold=False, exact=False, show=False):
        rows = dict.fromkeys(self.marks, MARK)
        for key in self.touched:
            slot, aside = self.resident(key), self.side.get(key)
            if aside and (not slot or "newest-copy" in self.off):
                rows[key] = aside
            elif slot:
                rows[key] = slot[0] or (key, 0, 0)
        small = self.world.small
        exact = (exact or bool(self.executed)) and self.captured[1] != self.net
        record = self.record(rows, exact=exact, show=show or small, inside=small)
        how = "exact " * (record.exact == record.chk) + "with parameters " * (record.dense is not None)
        self.say(f"cuts {record.num} {how}{', held by the gate' * hold}{', new generation' * generation}: {rows}")
        if generation and "generation-at-cut" not in self.off:
            self.open_generation(record)
        if hold:
            self.held = record
        else:
            self.pending.append((record, generation))

    def open_generation(self, record):
        self.gens[-1].closed = record.num
        self.gens.append(Generation())

    def append(self):
        record, generation = self.pending.pop(0)
        if record.orders and "order-exact" not in self.off:
            while record.net is None and record.exact not in self.safe:
                self.write_state()
        self.segment.records.append(record)
        self.published = record
        self.sent.append(record)
        self.say(f"publishes {record.num}")
        if generation and "generation-at-cut" in self.off:
            self.open_generation(record)

    def write_state(self):
        """Write the oldest state that waits, or fsync it."""
        if self.writing:
            chk, state = self.writing[0]
            if chk not in self.world.states:
                if "state-at-cut" in self.off:
                    state.net = self.net
                self.world.states[chk] = state
                self.say(f"writes the exact state of {state.num}")
            else:
                state.synced = True
                self.say(f"fsyncs the exact state of {state.num}")
            if state.synced or "state-fsync" in self.off:
                self.safe.add(chk)
                self.writing.pop(0)

    def append_all(self):
        while self.pending:
            self.append()

    def tear(self):
        """An append fails half way."""
        self.segment.records.append(replace(self.pending[0][0], torn=True))
        self.say(f"writes half of {self.pending[0][0].num}")

    def roll(self):
        if "fsync-in-order" not in self.off:
            self.segment.synced = len(self.segment.records)
        self.new_file()
        self.say(f"begins file {self.file[1]}")

    def fsync(self):
        self.segment.synced = len(self.segment.records)
        if self.look() or "durable-looks" in self.off:
            kept = [r for r in self.sent if r.net is not None or r.exact in self.safe or "durable-exact" in self.off]
            self.durable, self.sent = kept[-1].num, self.sent[self.sent.index(kept[-1]) :]
            self.world.promised = max(self.world.promised, self.durable)
            self.world.trash.clear()
            self.say(f"says {self.durable} is durable")
