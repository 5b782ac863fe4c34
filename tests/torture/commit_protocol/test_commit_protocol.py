"""Crashes between any two disk operations, in any schedule of trainers, fenced trainers, compactors and readers.

Covers: trainers of one rank and of several, after one another; several epochs and take-overs; kills and power losses
before each fsync, rename, unlink and rmdir of a start, an append with a new segment, a sync, a compaction, retention, a
submitted or deleted command; ranks that fsync alone, that repeat an append in a new file, or are missing when their
team dies; a damaged base; of each rank's files another part kept, files truncated anywhere or ending in garbage;
exact states beside the log, and versions without; each name made, removed or renamed since its folder's fsync kept or
lost, in any order; fenced trainers that still write; readers that have read what is lost. Not covered: corruption of
fsynced bytes, two steps at the same instant, and the contents of rows (the state machine of `tests/embeddings`).
"""

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.scale import IS_LONG, NUM_EXAMPLES
from tests.torture.commit_protocol.model_world import ModelWorld
from tests.torture.disk.power_loss import KILL, LOSS_PROFILES

# an fsync in memory costs nothing, and is recorded all the same
MEMORY = Path("/dev/shm")
SHORT_EXAMPLES = 15
NETS = ("file", "none", "carried")

keys = st.tuples(st.integers(0, 1), st.integers(0, 4))
rows = st.dictionaries(keys, st.tuples(st.integers(1, 99).map(float), st.just(1)), max_size=3)
profiles = st.sampled_from([KILL, *LOSS_PROFILES])
nets = st.sampled_from(NETS)
ranks = st.integers(0, 2)
torn_ranks = st.one_of(st.none(), st.none(), st.none(), ranks)
MANY = {(1, 1000 + number): (float(number % 99 + 1), 1) for number in range(900)}  # they fill a file
seeds = st.integers(0, 2**16)
STEPS = ("start", "append", "sync", "compact", "retire", "submit_command", "all")


class CommitMachine(RuleBasedStateMachine):
    """Hypothesis chooses the schedule of a ModelWorld."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.world = ModelWorld(self.folder)

    @rule(num_ranks=st.sampled_from([1, 1, 2, 3]))
    def start(self, num_ranks: int) -> None:
        if self.world.team is None or len(self.world.fenced_teams) < 2:
            self.world.start(num_ranks)

    @rule(
        rows=rows,
        forgotten=st.lists(keys, max_size=2),
        padding=st.sampled_from([0, 0, 30_000]),
        net=nets,
        torn_rank=torn_ranks,
        is_large=st.sampled_from([False, False, False, True]),
    )
    def append(
        self, rows: dict, forgotten: list, padding: int, net: str, torn_rank: int | None, is_large: bool
    ) -> None:
        self.world.append(rows | (MANY if is_large else {}), forgotten, padding, net, torn_rank)

    @rule(missing_rank=ranks)
    def die_in_an_append(self, missing_rank: int) -> None:
        self.world.die_in_an_append(missing_rank)

    @rule()
    def sync(self) -> None:
        self.world.sync()

    @rule(rank=ranks)
    def sync_one(self, rank: int) -> None:
        self.world.sync_one(rank)

    @rule(max_replayed_bytes=st.sampled_from([1, 1 << 20]), base_files=st.sampled_from([1, 3]))
    def compact(self, max_replayed_bytes: int, base_files: int) -> None:
        self.world.compact(max_replayed_bytes, base_files)

    @rule()
    def damage(self) -> None:
        self.world.damage()

    @rule(keep_bases=st.sampled_from([1, 2]))
    def retire(self, keep_bases: int) -> None:
        self.world.retire(keep_bases)

    @rule()
    def submit_command(self) -> None:
        self.world.submit_command()

    @precondition(lambda self: self.world.fenced_teams)
    @rule(whole=st.booleans())
    def write_as_fenced_trainer(self, whole: bool) -> None:
        self.world.write_as_fenced_trainer(whole)

    @rule(which=st.integers(0, 1), limit_bytes=st.sampled_from([1, 1 << 20]))
    def read(self, which: int, limit_bytes: int) -> None:
        self.world.readers[which].read(limit_bytes)

    @rule(profile=profiles, seed=seeds, countdown=st.integers(1, 20), step=st.sampled_from(STEPS))
    def crash(self, profile: object, seed: int, countdown: int, step: str) -> None:
        self.world.crash(profile, random.Random(seed), countdown, lambda: self.step(step))

    def step(self, name: str) -> None:
        """Do what is under way when the crash comes."""
        if name in ("append", "all"):
            for value, net in enumerate(NETS):
                self.world.append({(0, value): (float(value), 1)}, [], 30_000, net)
        if name == "all":
            for inner in ("sync", "append", "compact", "retire", "submit_command", "sync", "start"):
                self.step(inner)
        elif name != "append":
            getattr(self.world, name)()

    @invariant()
    def readers_see_the_expected_state(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        try:
            self.world.finish()
        finally:
            self.world.close()
            shutil.rmtree(self.folder)


class LongSchedule(CommitMachine):
    """Draws what Hypothesis would choose."""

    def __init__(self, nets: tuple[str, ...]) -> None:
        super().__init__()
        self.nets = nets

    def append_at_random(self, draw: random.Random) -> None:
        rows = {(feature, draw.randrange(9)): (float(draw.randrange(1, 99)), 1) for feature in (0, 1)}
        torn_rank = draw.randrange(3) if draw.random() < 0.1 else None
        self.append(rows, [(0, draw.randrange(9))], 0, draw.choice(self.nets), torn_rank, draw.random() < 0.3)

    def crash_at_random(self, draw: random.Random) -> None:
        step = draw.choice(("start", "append", "sync", "compact", "retire"))
        profile = draw.choice([KILL, *LOSS_PROFILES])
        self.crash(profile, draw.randrange(1 << 16), draw.randrange(1, 20), step)

    def step(self, name: str) -> None:
        if name == "append":
            self.append({(0, 1): (1.0, 1)}, [], 30_000, self.nets[0], None, False)
        else:
            super().step(name)


def test_no_crash_loses_or_invents_anything() -> None:
    run_state_machine_as_test(
        CommitMachine, settings=settings(max_examples=NUM_EXAMPLES or SHORT_EXAMPLES, stateful_step_count=20)
    )


@pytest.mark.parametrize(
    "profile", [KILL, *LOSS_PROFILES], ids=lambda profile: f"{profile.names}-{profile.bytes}-{profile.garbage}"
)
@pytest.mark.parametrize("countdown", range(1, 46, 1 if IS_LONG else 4))
def test_a_crash_before_each_disk_operation(profile: object, countdown: int) -> None:
    machine = CommitMachine()
    try:
        machine.world.start(1 + countdown % 3)
        machine.step("all")
        machine.world.readers[0].read()
        machine.world.readers[0].read()
        machine.world.crash(profile, random.Random(countdown), countdown, lambda: machine.step("all"))
        machine.world.readers[0].read()
    finally:
        machine.teardown()


# what happens in a long schedule, and how often
SCHEDULE = {
    "start": (8, lambda machine, draw: machine.start(draw.choice([1, 1, 1, 2, 2, 3]))),
    "append": (20, lambda machine, draw: machine.append_at_random(draw)),
    "die in an append": (3, lambda machine, draw: machine.world.die_in_an_append(draw.randrange(3))),
    "sync": (10, lambda machine, draw: machine.sync()),
    "sync one": (8, lambda machine, draw: machine.world.sync_one(draw.randrange(3))),
    "write as fenced": (4, lambda machine, draw: machine.world.write_as_fenced_trainer(draw.random() < 0.5)),
    "crash": (3, lambda machine, draw: machine.crash_at_random(draw)),
    "damage": (3, lambda machine, draw: machine.damage()),
    "compact": (10, lambda machine, draw: machine.compact(draw.choice([1, 1 << 20]), draw.choice([1, 3]))),
    "retire": (5, lambda machine, draw: machine.retire(draw.choice([1, 2, 2, 2]))),
    "read": (15, lambda machine, draw: machine.read(draw.randrange(2), draw.choice([1, 1 << 20]))),
}


@pytest.mark.parametrize("nets", [("carried",), NETS], ids=["carried", "paced"])
@pytest.mark.parametrize("seed", range(10))
def test_readers_see_only_whole_real_versions_after_a_long_schedule(seed: int, nets: tuple[str, ...]) -> None:
    machine, draw = LongSchedule(nets), random.Random(seed)
    weights = [weight for weight, _ in SCHEDULE.values()]
    try:
        for name in draw.choices(list(SCHEDULE), weights, k=70):
            SCHEDULE[name][1](machine, draw)
            machine.world.check()
    finally:
        machine.teardown()
