"""The world: everything that may happen, by name, and its quiet end."""

from typing import ClassVar

from tests.torture.commit_protocol.model.happenings import Happenings
from tests.torture.commit_protocol.model.team import Team
from tests.torture.commit_protocol.schedules import Violation


class World(Happenings):
    """The disk, the processes, the oracle, and the hand that moves them."""

    def __init__(self, seed, off=(), trace=None):
        super().__init__(seed, off, trace)
        self.launch(self.first_launch)

    def quiet(self, r):
        """Nothing is killed for a while: the ruling team writes what it has in hand, followers arrive at its end."""
        team = next((t for t in self.teams if t.epoch == max(self.claims) and t.running and not t.broken), None)
        if team:
            self.say("-- quiet")
            for rank in team.ranks:
                self.let(rank, rank.write_all)
            if not team.broken:
                team.drain()
                self.arrive(team)

    def arrive(self, team):
        for follower in self.followers:
            follower.inbox = None
            for _ in range(8):
                follower.poll()
            if follower.served.chk != team.last_chk:
                if follower.served.num > team.published:
                    continue  # of a version that went with the power; swapped as soon as a newer one is published
                raise Violation(
                    f"C8: all is quiet, the log ends at {team.published}, a follower stays at {follower.served.num}"
                )

    def settle(self, r):
        """The end: a last team, alone, learns the rest; followers arrive; everything has counted exactly once."""
        self.say("-- the end: a last team, alone")
        for t in self.teams:
            for rank in t.ranks:
                rank.dead = True
        team = Team(self, r % 4 + 1, [0] * 4)
        while not team.started:
            team.advance()
        while not team.running:
            for rank in team.ranks:
                if not rank.loaded:
                    rank.load()
        while team.truth.dense != self.full(team) or any(i not in team.done for i in self.orders):
            before = team.truth.dense, len(team.done), team.cut_num
            team.train(8)
            team.drain()
            team.execute(0)
            team.drain()
            if team.broken or (team.truth.dense, len(team.done), team.cut_num) == before:
                raise Violation("C8: a team that nobody disturbs gets no further")
        team.cut(exact=True)
        team.drain()
        self.fresh_reader()
        self.arrive(team)
        for rank in team.ranks:
            rank.sync()
            rank.tell_synced()
        team.drain()
        team.sync()
        team.declare()
        if team.durable != team.published:
            raise Violation(f"C8: all is fsynced, and only {team.durable} of {team.published} is durable")
        self.power_loss(r // 4 * 3)
        self.fresh_reader()
        if any(rank.dense != self.full(team) for rank in team.ranks):
            raise Violation("C1: some sample is not counted exactly once")
        if sorted(team.truth.orders) != [*range(1, self.submitted + 1)]:
            raise Violation(f"C1: {self.submitted} orders submitted, executed: {team.truth.orders}")

    def full(self, team):
        return sum(1 << 4 * i for i in range(self.total) if i not in team.truth.skipped)

    def hold(self, t):
        t.held = True

    BY_TEAM: ClassVar = {  # name: (weight, does it change the disk, who must be able to, what it does)
        "train": (40, False, Team.together, lambda w, t, r: t.train(r)),
        "cut": (16, False, Team.can_cut, lambda w, t, r: t.cut(r)),
        "execute": (8, False, Team.together, lambda w, t, r: t.execute(r)),
        "flow": (60, True, Team.in_hand, lambda w, t, r: t.flow(r)),
        "flow_down": (10, True, lambda t: t.started, lambda w, t, r: t.flow_down(r)),
        "hold": (0.5, False, Team.together, lambda w, t, r: w.hold(t)),
        "release": (3, False, lambda t: t.together() and t.held, lambda w, t, r: setattr(t, "held", False)),
        "gate_back": (3, False, lambda t: t.together() and t.held, lambda w, t, r: t.gate_back(r)),
        "write_state": (
            8,
            True,
            lambda t: t.started and t.lead.able and t.lead.loaded,
            lambda w, t, r: t.write_state(),
        ),
        "tear_main": (
            0.6,
            True,
            lambda t: t.started and t.lead.able and t.lead.loaded,
            lambda w, t, r: t.publish(torn=True),
        ),
        "roll_main": (3, True, lambda t: t.started and t.lead.able, lambda w, t, r: t.pen.roll()),
        "plan_orders": (
            4,
            False,
            lambda t: t.started and t.lead.able and t.lead.loaded,
            lambda w, t, r: t.plan_unlink(),
        ),
        "unlink_orders": (4, True, lambda t: t.started and t.lead.able, lambda w, t, r: t.unlink()),
    }
    BY_RANK: ClassVar = {
        "apply": (16, False, lambda k: k.todo, lambda w, k, r: k.apply()),
        "move_rows": (40, False, lambda k: k.loaded and not k.todo, lambda w, k, r: k.tiers.move(r)),
        "tear": (0.6, True, lambda k: k.pending, lambda w, k, r: k.pen.tear(k.pending[0])),
        "roll": (9, True, lambda k: k.loaded, lambda w, k, r: k.pen.roll()),
    }
    BY_OTHERS: ClassVar = {
        "launch": (10, Happenings.launch),
        "advance": (8, Happenings.advance),
        "load": (8, Happenings.load),
        "submit": (4, Happenings.submit),
        "kill": (1.5, Happenings.kill),
        "freeze": (0.6, Happenings.freeze),
        "thaw": (4, Happenings.thaw),
        "power_loss": (1.2, Happenings.power_loss),
        "corrupt": (0.3, Happenings.corrupt),
        "upkeep": (10, Happenings.upkeep),
        "merge": (5, lambda w, r: w.mergers[r % 2].begin(r // 2)),
        "finish": (5, Happenings.finish),
        "plan": (5, lambda w, r: w.mergers[r % 2].plan()),
        "retire": (6, Happenings.retire),
        "poll": (14, lambda w, r: w.followers[r % 2].poll(r // 2)),
        "read_main": (6, lambda w, r: w.followers[r % 2].read_main(r // 2)),
        "read_shards": (8, lambda w, r: w.followers[r % 2].read_shards(r // 2)),
        "use": (6, lambda w, r: w.followers[r % 2].use()),
        "adopt": (5, lambda w, r: w.followers[r % 2].adopt()),
        "doubt": (1, Happenings.doubt),
        "show": (6, Happenings.show),
        "quiet": (2, quiet),
        "settle": (0, settle),
    }

    def act(self, name, r):
        """Let one thing happen; nothing that anyone reads may be wrong afterwards."""
        if name in self.BY_OTHERS:
            return self.BY_OTHERS[name][1](self, r)
        by_rank = name in self.BY_RANK
        _, disk, need, verb = (self.BY_RANK if by_rank else self.BY_TEAM)[name]
        if (
            name in ("train", "flow", "flow_down")
            and self.teams
            and (self.teams[-1].broken or not self.teams[-1].running)
            and r // 8 % 2
        ):
            return self.get_going(r)
        fits = (lambda t: any(k.able and need(k) for k in t.ranks)) if by_rank else need
        if not (team := self.pick_team(r, fits)):
            return None
        who = team
        if by_rank:
            able = [k for k in team.ranks if k.able and need(k)]
            who = able[r // 16 % len(able)]
        zombie = team.epoch < self.manifest().epoch
        before = self.fresh_reader() if disk and zombie else None
        self.let(who if by_rank else team.lead, verb, self, who, r // 64)
        if disk and zombie and self.fresh_reader() != before:
            raise Violation(f"C3: epoch {team.epoch}, a zombie, changes what is read")
        return None
