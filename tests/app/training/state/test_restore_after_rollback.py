"""A rolled-back state is bitwise the old one, except for what was forgotten since."""

import numpy as np
import pytest

from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.training_state import TrainingState
from springtide.stream.positions import Position
from springtide_client.format.records import CommandEntry, NamedKey
from springtide_client.model.view import KNOWN, UNKNOWN
from tests.app.training.random_clicks import PARTITION, RANDOM_CLICKS, make_batch
from tests.app.training.state.test_training_state import TIGHT
from tests.support.config import NET_ALONE, config_in
from tests.support.learned_log import LearnedLog

SETTINGS = """
[table]
eviction = "lfu"
admission = { min_count = 2, sketch_bytes = 2048, decay_every_samples = 150 }
[features.genres]
admission = { min_count = 5 }
"""


class Run(LearnedLog):
    def __init__(self, folder) -> None:
        super().__init__(config_in(folder, RANDOM_CLICKS, TIGHT, SETTINGS, NET_ALONE))

    def learn(self, numbers, *, every=3) -> list[int]:
        return super().learn(numbers, every=every)

    def forget(self, *users: int) -> None:
        self.state.learner.table.forget(np.zeros(len(users), np.uint16), np.array(users))
        keys = [NamedKey("user_id", user) for user in users]
        self.state.add_executed_command(CommandEntry(id=f"forget {users}", kind="forget", keys=keys))

    def roll_back(self, number: int, **options) -> None:
        """As a trainer does it: append, and load from the log."""
        super().roll_back(number, id=f"back to {number}", **options)
        self.state.learner.table.close()
        self.state = load_state(self.config, self.log)


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "run")
    yield made
    made.end()


KEYS = np.repeat(np.arange(3, dtype=np.uint16), 2000), np.tile(np.arange(2000), 3)


def snapshot(state: TrainingState) -> dict[str, np.ndarray]:
    """Dense net, optimizer, scores, sketch, clocks, and every row with its counts and optimizer state."""
    table = state.learner.table
    arrays = state.base_arrays()
    rows, status = table.find(*KEYS)
    # a key created since is reported as forgotten while its record is retained, whatever it was before
    arrays |= {"values": rows, "status": np.where(status == KNOWN, KNOWN, UNKNOWN)}
    found = table.lower_tiers.fetch(*KEYS)
    slots = table.memory.find(*KEYS)
    here = slots >= 0
    resident, _ = table.memory.read(slots[here], KEYS[0][here], KEYS[1][here])
    for name in ("state", "count", "last_seen"):
        column = getattr(found.rows, name).copy()
        column[here] = getattr(resident, name)
        alive = arrays["status"] == KNOWN
        arrays[name] = np.where(alive.reshape(-1, *[1] * (column.ndim - 1)), column, 0)
    blocks = np.arange(2048 // 64)
    if table.admission:
        arrays["sketch"] = table.ops.sketch_read(table.admission.sketch, blocks)
    meta = state.meta(0)
    facts = meta.positions, meta.samples_trained, meta.step, meta.event_clock_ms, meta.scores, meta.dead_letters
    trainer = {name: value for name, value in meta.trainer.items() if name not in ("erasures", "high_water_marks")}
    arrays["meta"] = np.array([repr(facts), repr(trainer)])
    return arrays


def assert_same(one, other, *, but_keys=()) -> None:
    assert one.keys() == other.keys()
    but = np.zeros(len(KEYS[0]), bool)
    for feature, row_id in but_keys:
        but |= (KEYS[0] == feature) & (KEYS[1] == row_id)
    for name, array in one.items():
        if name in ("values", "status", "state", "count", "last_seen"):
            np.testing.assert_array_equal(array[~but], other[name][~but], err_msg=name)
        else:
            np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize("range_bytes", [1 << 30, 20_000])
@pytest.mark.parametrize("merge_at", [None, "before", "after"])
def test_a_rolled_back_state_is_bitwise_the_old_one_and_learns_on(tmp_path, merge_at, range_bytes):
    run = Run(tmp_path / "run")
    run.learn(range(12))
    if merge_at == "before":
        run.compact()
    number = run.checkpoint()
    then = snapshot(run.state)
    run.learn(range(12, 30))
    run.roll_back(number, range_bytes=range_bytes)
    assert_same(snapshot(run.state), then)
    if merge_at == "after":
        run.compact()
        run.restart()
        assert_same(snapshot(run.state), then)
    run.learn(range(12, 18))
    run.restart()
    whole = Run(tmp_path / "whole")
    whole.learn(range(18))
    assert_same(snapshot(run.state), snapshot(whole.state))
    whole.end()
    run.end()


def test_the_first_version_can_be_restored(run):
    then = snapshot(run.state)
    first = run.log.last_encoded.number
    run.learn(range(12))
    run.roll_back(first)
    now = snapshot(run.state)
    assert not [name for name in now if name.startswith("state.optimizer.")]
    assert_same(now, then)


def test_a_rollback_restores_nothing_that_was_forgotten_or_expired_since(run):
    run.learn(range(9))
    number = run.checkpoint()
    then = snapshot(run.state)
    users = np.unique(np.concatenate([make_batch(n).features.categorical_NC[:, 0] for n in range(9)]))
    gone, back = int(users[0]), int(users[1])
    run.forget(gone, back)
    run.checkpoint()
    run.learn(range(9, 15))  # both return as new ones
    seen = then["last_seen"][(KEYS[0] == 1) & (then["last_seen"] > 0)]
    horizon = int(np.median(seen))
    run.state.learner.table.raise_expiry_cutoffs({1: horizon})
    run.checkpoint()
    run.roll_back(number)
    # until the stream is where it was forgotten; the test's own entries do not say, so it is where the log ended
    (erasure,) = run.state.stream.erasures
    assert (erasure.keys, erasure.until) == (((0, gone), (0, back)), {PARTITION: Position("topic-1", 15 * 32)})
    now = snapshot(run.state)
    dead = (KEYS[0] == 1) & (then["last_seen"] < horizon) & (then["status"] == KNOWN)
    assert dead.sum() > 10
    assert not (now["status"][dead] == KNOWN).any()
    assert run.state.learner.table.expiry_cutoffs == {1: horizon}
    lost = [(1, int(row_id)) for row_id in KEYS[1][dead]] + [(0, gone), (0, back)]
    assert not any(now["status"][(KEYS[0] == 0) & ((KEYS[1] == gone) | (KEYS[1] == back))] == KNOWN)
    assert_same(now, then, but_keys=lost)
    # and not by way of a rollback to a version of the time in between, nor of one to before the first rollback
    run.learn(range(9, 12))
    run.roll_back(number)
    again = snapshot(run.state)
    assert_same(again, now)


def test_an_id_seen_again_after_its_erasure_survives_a_rollback_to_then(run):
    run.learn(range(6))
    user = int(make_batch(0).features.categorical_NC[0, 0])
    run.forget(user)
    run.checkpoint()
    run.learn(range(6, 12))
    number = run.checkpoint()
    then = snapshot(run.state)
    run.learn(range(12, 18))
    run.roll_back(number)
    assert_same(snapshot(run.state), then)


def test_a_rollback_can_be_rolled_back_to_before_and_after_it(run):
    first, second = (run.learn(numbers)[-1] for numbers in (range(6), range(6, 12)))
    run.state.learner.table.take_delta()
    then = snapshot(run.state)
    run.roll_back(first)
    early = snapshot(run.state)
    run.learn(range(6, 9))
    run.roll_back(second)
    assert_same(snapshot(run.state), then)
    run.roll_back(first)
    assert_same(snapshot(run.state), early)


def test_executed_commands_and_limits_are_not_rolled_back(run):
    number = run.learn(range(6))[-1]
    run.state.change_limits({(None, "lr"): 0.5})
    run.state.add_executed_command(CommandEntry(id="limits 1", kind="limits"))
    run.checkpoint()
    run.roll_back(number)
    assert run.state.learner.table.lr == 0.5
    assert "limits 1" in run.state.executed_commands
    run.compact()
    run.restart()
    assert run.state.learner.table.lr == 0.5
    assert {"limits 1", f"back to {number}"} <= run.state.executed_commands.keys()
