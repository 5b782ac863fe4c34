"""What happens to the processes and the disk; each takes one random number."""

import random

from tests.torture.commit_protocol.model.disk import Disk
from tests.torture.commit_protocol.model.readers import Follower
from tests.torture.commit_protocol.model.records import FEATURES, HOSTS, KEYS
from tests.torture.commit_protocol.model.team import Team
from tests.torture.commit_protocol.schedules import Gone


class Happenings(Disk):
    """The hand that moves the processes."""

    # what happens; each takes one random number
    def pick_team(self, r, need):
        """Mostly the team of the highest epoch, else any."""
        able = sorted((t for t in self.teams if not t.gone and need(t)), key=lambda t: t.epoch)
        return able and (able[-1] if r % 4 else able[r // 4 % len(able)])

    def let(self, rank, verb, *args):
        try:
            verb(*args)
        except Gone:
            rank.die("files are gone")
            if not rank.team.epoch or not self.overtaken(rank.team.epoch):
                raise

    def launch(self, r):
        """The launcher starts a team when the last one is broken, or now and then takes over from a living one."""
        self.teams = [t for t in self.teams if not t.gone]
        healthy = [t for t in self.teams if not t.broken]
        if len(self.teams) < 4 and (not healthy or (r // 4 % 4 == 0 and len(healthy) < 3)):
            rival = Team(self, 1, [r // 16384 % HOSTS]) if healthy and r // 8192 % 4 == 0 else None
            if rival:  # it stops right after its claim; its host may die right after the next claim
                self.teams.append(rival)
                rival.advance()
                rival.lead.frozen = True
            size = r // 64 % 4 + 1
            team = Team(self, size, [(r // 256 + i * (r // 1024 % 3)) % HOSTS for i in range(size)])
            self.teams.append(team)
            for step in range([0, 6, 6, 6][r % 4]):
                if rival and step == 1 and r // 32768 % 2:
                    self.power_loss(next(x for x in range(r, r + 40) if x % 3 and x // 4 % HOSTS == rival.lead.host))
                elif r % 4 == 1:
                    self.meanwhile(r // 4 + step)
                if team.lead.able and not team.started:
                    self.let(team.lead, team.advance)
            for rank in team.ranks * 2 if r % 4 == 3 and not team.lead.dead else []:
                if not rank.dead and not rank.loaded:
                    self.let(rank, rank.load)
                    if r // 64 % 2:
                        self.upkeep(r // 128 + len(self.bases))

    def meanwhile(self, r):
        """Other things happen between two steps of a start."""
        rng = random.Random(r)
        for _ in range(rng.choice([0, 0, 1, 3])):
            self.act(
                rng.choice(
                    [
                        "power_loss",
                        "flow",
                        "flow",
                        "flow_down",
                        "cut",
                        "upkeep",
                        "launch",
                        "flow_down",
                        "poll",
                        "freeze",
                    ]
                ),
                4 * rng.randrange(1 << 18) + rng.choice([0, 0, 2, 3]),
            )

    def advance(self, r):
        if t := self.pick_team(r, lambda t: not t.started and t.lead.able):
            self.let(t.lead, t.advance)

    def load(self, r):
        if t := self.pick_team(r, lambda t: t.started and any(rank.able and not rank.loaded for rank in t.ranks)):
            able = [rank for rank in t.ranks if rank.able and not rank.loaded]
            rank = able[r // 16 % len(able)]
            self.let(rank, rank.load)

    def get_going(self, r):
        """What the newest team lacks to run."""
        team = self.teams[-1]
        (self.launch if team.broken else self.load if team.started else self.advance)(r)

    def submit(self, r):
        kind = ("forget", "forget", "forget", "rule", "rollback", "rollback")[r % 6]
        self.submitted += 1
        self.orders[self.submitted] = (kind, r // 6 % (FEATURES if kind == "rule" else KEYS), r // 100 % 9)

    def kill(self, r):
        if t := self.pick_team(r, lambda t: True):
            living = [rank for rank in t.ranks if not rank.dead]
            for rank in living if r // 16 % 3 == 0 else living[r // 64 % len(living) :][:1]:
                rank.die("stuck in a collective" if t.broken else "killed")

    def freeze(self, r):
        if t := self.pick_team(r, lambda t: True):
            for rank in t.ranks if r // 16 % 3 == 0 else [t.ranks[r // 64 % t.size]]:
                rank.frozen = True

    def thaw(self, r):
        for t in self.teams:
            for rank in t.ranks:
                rank.frozen = rank.frozen and (r := r // 2) % 2 == 0

    def power_loss(self, r):
        """One host dies, or all; of what was not fsynced each of its files keeps any prefix; what was unlinked may be
        back."""
        rng = random.Random(r)
        hosts = set(range(HOSTS)) if r % 3 == 0 else {r // 4 % HOSTS}
        self.say(f"power loss of hosts {sorted(hosts)}")
        for rank in (rank for t in self.teams for rank in t.ranks if rank.host in hosts and not rank.dead):
            rank.die("power loss")
        for merger in self.mergers:
            if merger.host in hosts:
                merger.job, merger.plan_names = None, []
        for name, segment in list(self.disk.items()):
            if segment.host in hosts:
                vanishes = not segment.entry and rng.random() < 0.5
                keep = 0 if vanishes else rng.randint(segment.synced, len(segment.records))
                self.lost |= {record.chk for record in segment.records[keep:]}
                del segment.records[keep:]
                segment.shown = min(segment.shown, keep)
                segment.synced = min(segment.synced, keep)
                if vanishes:
                    del self.disk[name]
        for epoch, host in list(self.claims.items()):
            if host in hosts and epoch not in self.manifests and rng.random() < 0.5:
                del self.claims[epoch]
        for chk in [chk for chk, state in self.states.items() if state.host in hosts and not state.synced]:
            if rng.random() < 0.5:
                del self.states[chk]
                self.lost.add(("state", chk))
        for chk, host in list(self.unsynced_bases.items()):
            if host in hosts and rng.random() < 0.7:
                self.bases.pop(chk, None)
        for shelf, name, thing in self.trash:
            if shelf is not self.bases and rng.random() < 0.4:
                shelf[name] = thing
        self.orders = dict(sorted(self.orders.items()))
        self.trash.clear()

    def corrupt(self, r):
        """The newest base turns out to be damaged and is given up, once."""
        bases = self.bases_by_age()
        if len(bases) > 1 and self.keep_bases > 1 and not self.corrupted:
            self.corrupted = True
            del self.bases[bases[-1].chk]
            self.say(f"base {bases[-1].num} is damaged")

    def finish(self, r):
        if self.mergers[r % 2].job:
            self.mergers[r % 2].finish()
            self.fresh_reader()

    def retire(self, r):
        if self.mergers[r % 2].plan_names:
            self.mergers[r % 2].unlink(r // 2)
            self.fresh_reader()

    def upkeep(self, r):
        """A merger does all its work at once."""
        self.mergers[r % 2].begin(r // 2)
        self.finish(r)
        self.mergers[r % 2].plan()
        self.retire(r | 6)

    def doubt(self, r):
        """A follower meets a flipped bit and starts again, or a new one takes its place."""
        self.followers[r % 2].doubt = True
        if r // 2 % 3 == 0:
            self.followers[r % 2] = Follower(self)

    def show(self, r):
        """Bytes reach the other hosts, whether or not their writer still lives."""
        late = [s for s in self.disk.values() if s.shown < len(s.records)]
        if late:
            late[r % len(late)].shown += 1
