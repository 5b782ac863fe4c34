"""What the ranks of a team decide together, and its version records."""

import random

from tests.torture.commit_protocol.model.records import EPOCH, MAIN, alive, raised
from tests.torture.commit_protocol.model.start import StartingTeam
from tests.torture.commit_protocol.schedules import Violation


class Team(StartingTeam):
    """A team that has started. Decisions and version records are rank 0's."""

    # decisions, made in a step's exchange
    def propose(self, *op, at_once=0):
        """All ranks have to do this; those in the bit mask do it at once."""
        for rank in self.ranks:
            rank.todo.append(op)
        for rank in self.ranks:
            if at_once >> rank.index & 1:
                rank.apply()

    def train(self, r):
        samples = []
        if self.held:
            return
        for rank in self.ranks:
            able = [p for p in rank.pos if rank.pos[p] < len(self.world.stream[p])]
            if able and (r // 8 % 4 or rank.index != r // 32 % self.size):  # one rank's partitions may be silent
                p = able[r % len(able)]
                samples.append((p, *self.world.stream[p][rank.pos[p]]))
        keys = [key for _, _, keys, _ in samples for key in keys]
        if "cut-between-batches" not in self.off and any(
            len(rank.tiers.side) + sum(map(rank.owns, keys)) > rank.tiers.side_rows for rank in self.ranks
        ):
            self.cut(r)
        for sample in samples:
            self.truth.learn(self.world.clamp(self.truth.horizon), *sample)
        if samples:
            self.say(f"a step: {samples}")
            self.propose("train", samples, at_once=15 if r // 64 % 4 else r // 256)

    def cut(self, r=0, *, exact=False):
        exact, show = exact or r // 512 % 4 == 0, self.world.small or r // 2048 % 2 == 0
        self.count += 1
        num = self.epoch * EPOCH + self.count if "numbers-grow" not in self.off else self.cut_num + 1
        chk = self.world.next_checksum()
        self.cut_num = num
        self.done.update((i, num) for i, _ in self.executed)
        self.truth.shown = self.truth.dense if show else self.truth.shown
        self.world.truths[chk] = self.truth.copy()
        parent, orders, self.cut_chk, self.executed = self.cut_chk, self.executed, chk, ()
        self.propose("cut", num, chk, parent, orders, exact, show, at_once=15 if r // 64 % 2 else r // 256)

    def execute(self, r):
        waiting = [i for i in self.world.orders if i not in self.done]
        if not waiting or self.held:
            return None
        order = waiting[r % len(waiting)]
        kind, a, b = self.world.orders[order]
        truth = self.truth
        if kind == "rollback" and "rollback-published" not in self.off:
            if self.published == self.cut_num and (self.executed or self.truth != self.world.truths[self.last_chk]):
                self.cut()
            if self.published != self.cut_num or self.truth != self.world.truths[self.last_chk]:
                return None
        if order in truth.orders:
            raise Violation(f"C1: order {order} is executed twice")
        self.say(f"all execute order {order}: {kind} {a} {b}")
        if kind == "forget":
            truth.rows.pop(a, None)
            truth.forgotten[a] = truth.forgotten.get(a, 0) + 1
            self.propose("forget", a)
        elif kind == "rule":
            before = sum(truth.pos.values()) * 2 - b
            truth.horizon = raised(truth.horizon, a, before)
            truth.rows = alive(truth.rows, truth.horizon)
            self.propose("rule", a, before)
        else:
            places = self.world.rollback_places(self.manifest)
            if self.world.overtaken(self.epoch):
                return self.lead.die("overtaken")
            target = places[b % len(places)]
            truth.back_to(self.world.truths[target[1]])
            self.propose("rollback", target, self.published, b)
        self.done[order] = None
        self.executed += ((order, a if kind == "forget" else None),)
        truth.orders += (order,)
        return None

    def gate_back(self, r):
        """What the gate holds back is thrown away: back to the newest exact version, past the samples since; orders
        executed meanwhile are executed again."""
        if not self.held or self.published != self.cut_num:
            return None
        place = self.world.rollback_places(self.manifest)[-1]
        if self.world.overtaken(self.epoch):
            return self.lead.die("overtaken")
        for i, _ in self.executed:
            del self.done[i]
        then, stream = self.world.truths[place[1]], self.world.stream
        now = {p: max(n, then.pos[p]) for p, n in self.truth.pos.items()}  # a rollback may be held back too
        self.held, self.executed, self.truth = False, (), self.world.truths[self.last_chk].copy()
        self.truth.back_to(then)
        self.truth.pos = dict(now)
        self.truth.skipped |= {i for p in now for i, _, _ in stream[p][then.pos[p] : now[p]]}
        self.say(f"the gate goes back to {place[0]}, past samples {sorted(self.truth.skipped)}")
        self.propose("rollback", place, self.published, r, dict(now))
        self.cut(r, exact=True)
        return None

    # version records
    def deliver(self, rank):
        """A report of a rank arrives."""
        kind, num, *chk = rank.outbox.pop(0)
        if kind == "written":
            self.reported.setdefault(num, {})[rank.index] = chk[0]
        else:
            self.synced[rank.index] = max(self.synced[rank.index], num)

    def ready(self):
        """The next version record that may be written, or None."""
        for record in reversed(self.waiting) if "in-order" in self.off else self.waiting[:1]:
            reported = self.reported.get(record.num, {})
            if "all-reported" in self.off:
                reported = {i: (record.chk, i) for i in range(self.size)} if 0 in reported else {}
            if len(reported) == self.size:
                return record, reported
        return None

    def publish(self, torn=False):
        if not (found := self.ready()):
            return None
        record, reported = found
        while record.orders and record.net is None and record.exact not in self.safe and "order-exact" not in self.off:
            self.write_state()
        record.shards, record.durable = tuple(sorted(reported.items())), self.durable
        if torn:
            return self.pen.tear(record)
        self.waiting.remove(record)
        self.pen.append(record, shown=True)
        self.last_chk, self.published = record.chk, record.num
        self.sent.append(record)
        self.world.mains[record.chk] = record
        self.say(f"publishes {record.num}")
        return None

    def sync(self):
        self.pen.sync()
        self.say(f"fsyncs version records up to {self.pen.noted}")

    def declare(self):
        """Is a newer version durable? Its offsets are reported, its orders may go."""
        main = self.published if "durable-main" in self.off else self.pen.noted
        num = main if "durable-shards" in self.off else min(main, *self.synced.values())
        if num <= self.durable:
            return None
        if "durable-looks" not in self.off and self.world.overtaken(self.epoch):
            return self.lead.die("overtaken")
        kept = [
            v
            for v in self.sent
            if v.num <= num and (v.net is not None or v.exact in self.safe or "durable-exact" in self.off)
        ]
        if kept[-1].num <= self.durable:
            return None
        self.durable = num = kept[-1].num
        self.sent = self.sent[self.sent.index(kept[-1]) :]
        self.world.promised.add(self.world.numbers[num, MAIN])
        self.world.trash.clear()
        self.say(f"says {num} is durable")
        return None

    def plan_unlink(self):
        safe = self.published if "order-durable" in self.off else self.durable
        orders, states = self.world.orders, self.world.states
        self.plan = [(orders, i) for i in orders if self.done.get(i) is not None and self.done[i] <= safe]
        first = self.sent[0]
        keep = max(states, default=-1) if "state-kept" in self.off else first.exact  # what a restart goes back to
        oldest = states[keep].num if keep in states else first.num if first.num <= self.durable else 0
        self.plan += [(states, chk) for chk, state in states.items() if chk != keep and state.num < oldest]

    def unlink(self):
        for shelf, name in self.plan:
            if name in shelf:
                self.world.throw(shelf, name)
        self.plan = []

    def write_state(self):
        """Write the oldest exact state that waits, or fsync it."""
        if not self.writing:
            return
        chk, state = self.writing[0]
        if chk not in self.world.states:
            if "state-at-cut" in self.off:
                state.net = self.lead.dense
            self.world.states[chk] = state
            self.say(f"writes the exact state of {state.num}")
        else:
            state.synced = True
            self.say(f"fsyncs the exact state of {state.num}")
        if state.synced or "state-fsync" in self.off:
            self.safe.add(chk)
            self.writing.pop(0)

    def flow(self, r):
        """A few of the small things on the way to a published version, in any order; reports of the dead may come."""
        rng = random.Random(r)
        for _ in range(rng.choice([1, 3, 12, 30])):
            rank = rng.choice(self.ranks)
            if rank.able and rank.loaded:
                if rank.todo:
                    if rank.todo[0][0] == "rollback" and rng.random() < 0.4:
                        self.world.upkeep(rng.randrange(64))  # a base may appear between two ranks' readings
                    rank.apply()
                elif rank.pending and rng.random() < 0.7:
                    rank.write()
                elif rank.unseen:
                    rank.pen.show()
                    rank.tell_written()
            if self.lead.able and rank.outbox and rng.random() < 0.7:
                self.deliver(rank)
            elif self.lead.able and self.lead.loaded:
                self.publish()
                if rng.random() < 0.3:
                    self.write_state()

    def flow_down(self, r):
        """Most of the ranks fsync and tell, maybe all arrives, maybe rank 0 sees what is durable."""
        rng = random.Random(r)
        for rank in self.ranks:
            if rank.able and rank.loaded:
                if rng.random() < 0.75:
                    rank.sync()
                if rank.pending and rng.random() < 0.3:
                    rank.write()
                if rng.random() < 0.85:
                    rank.tell_synced()  # perhaps once more what it told before
            while self.lead.able and rank.outbox and rng.random() < 0.9:
                self.deliver(rank)
        if self.lead.able and rng.random() < 0.7:
            self.sync()
        if self.lead.able and self.lead.loaded:
            if rng.random() < 0.3:
                self.publish()
            if rng.random() < 0.5:
                self.write_state()
        if self.lead.able and rng.random() < 0.7:
            self.declare()

    def drain(self):
        """Everything in hand gets written and told."""
        for rank in self.ranks:
            rank.frozen = False
            rank.write_all()
            while rank.outbox:
                self.deliver(rank)
        while self.ready():
            self.publish()
        while self.writing:
            self.write_state()
