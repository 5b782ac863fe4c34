"""A net that versions do not carry whole: exactly once across kills, and one version is still one instant."""

import shutil
from collections.abc import Iterator

import numpy as np
import pytest

from springtide.app.training.state.net_publisher import NetPublisher
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.read.exact_state import find_state, state_numbers
from springtide.app.version_log.verify.verify import verify
from springtide_client.follow.follower import Follower
from springtide_client.format.records import NO_STATE, CommandEntry, NamedKey
from springtide_client.format.tensors import from_bfloat16, to_bfloat16
from springtide_client.log.base import STATE
from springtide_client.log.listing import state_name
from springtide_client.model.view import KNOWN, UNKNOWN
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.app.training.state.test_training_state import TIGHT, assert_same, snapshot
from tests.support.config import NET_ALONE, Section, config_in, merge
from tests.support.damage import flip
from tests.support.learned_log import LearnedLog
from tests.support.waiting import wait_until

# followers get the parameters only when asked for, and so is the exact state written
SLOW = {
    "log": {
        "exact_bytes": 0,
        "dense_seconds": 3600,
        "dense_change": 1e9,
        "dense_cost": 1.0,
        "durable_seconds": 1e9,
    }
}
EAGER = merge(SLOW, {"log": {"dense_change": 0.0}})
IN_BFLOAT16 = {"log": {"dense_dtype": "bfloat16"}}


class PacedRun(LearnedLog):
    """Publishes the net at a pace of its own; `seconds`: the time by its clock."""

    def __init__(self, folder, *layers: Section, model: Section | str = NET_ALONE) -> None:
        self.seconds = 0.0
        super().__init__(config_in(folder, RANDOM_CLICKS, TIGHT, *layers, model))

    def open(self) -> None:
        super().open()
        self.net = NetPublisher(self.config.log, self.state.learner, self.log, clock=lambda: self.seconds)

    def publish(self, *, exact: bool = False) -> int:
        carried, net = self.net.take(exact=exact)
        meta, arrays = self.state.checkpoint(created_ms=1, complete_until_ms=1, net=carried)
        number = self.log.append_owned(meta, arrays, net)
        self.net.on_appended(number)
        wait_until(lambda: self.log.published is not None and self.log.published.number == number)
        return number

    def forget(self, user: int) -> None:
        self.state.learner.table.forget(np.zeros(1, np.uint16), np.array([user]))
        keys = [NamedKey("user_id", user)]
        self.state.add_executed_command(CommandEntry(id=f"forget {user}", kind="forget", keys=keys))

    def restart(self) -> None:
        self.kill()
        self.open()


@pytest.fixture
def run(tmp_path) -> Iterator[PacedRun]:
    run = PacedRun(tmp_path / "run", SLOW)
    yield run
    run.kill()


def undisturbed(folder, numbers: range) -> dict[str, np.ndarray]:
    """What a trainer has learned of these batches."""
    other = PacedRun(folder)
    other.step(*numbers)
    found = snapshot(other.state)
    other.kill()
    return found


def test_a_killed_trainer_goes_back_to_the_newest_exact_version(run: PacedRun, tmp_path) -> None:
    run.step(0, 1, 2)
    exact = run.publish(exact=True)
    run.log.sync()
    run.step(3, 4)
    dropped = run.publish()
    assert not run.log.ends_exact
    run.log.sync()
    assert run.log.durable.number == exact
    run.restart()
    assert run.log.start_head.number == exact
    assert run.state.samples_trained == 3 * 32
    assert_same(snapshot(run.state), undisturbed(tmp_path / "other", range(3)))
    run.step(3, 4, 5)
    assert run.publish() > dropped
    assert_same(snapshot(run.state), undisturbed(tmp_path / "another", range(6)))


def test_nothing_is_lost_after_an_exact_end(run: PacedRun, tmp_path) -> None:
    run.step(0)
    run.publish()
    run.step(1)
    run.publish(exact=True)
    heartbeat = run.publish()
    run.log.sync()
    assert run.log.durable.number == heartbeat
    run.restart()
    assert run.log.start_head.number == heartbeat
    assert run.publish() >> 32 == 2
    run.log.sync()
    assert run.log.ends_exact
    assert_same(snapshot(run.state), undisturbed(tmp_path / "other", range(2)))


def test_a_state_that_does_not_match_its_checksum_is_not_used(run: PacedRun) -> None:
    run.step(0)
    first = run.publish(exact=True)
    run.step(1)
    second = run.publish(exact=True)
    run.log.wait_for_state()
    flip(run.log.config.path / state_name(second) / STATE, -1)
    run.restart()
    assert run.log.start_head.number == first


def test_old_states_are_deleted_once_a_newer_version_is_durable(run: PacedRun) -> None:
    run.step(0)
    first = run.publish(exact=True)
    run.step(1)
    second = run.publish(exact=True)
    run.log.wait_for_state()
    assert state_numbers(run.log.config.path) == [first, second]
    run.log.sync()
    assert state_numbers(run.log.config.path) == [second]


def test_a_version_with_a_command_is_published_after_its_exact_state(run: PacedRun) -> None:
    run.step(0)
    run.publish()
    run.forget(1)
    number = run.publish(exact=True)
    assert find_state(run.log.config.path, run.log.published) is not None
    run.restart()
    assert run.log.start_head.number == number


def test_followers_get_the_parameters_at_their_own_pace(run: PacedRun, tmp_path) -> None:
    run.step(0)
    first = run.publish()
    run.seconds += 3600
    run.step(1)
    second = run.publish()
    run.step(2)
    third = run.publish()
    views = [run.view_at(number) for number in (first, second, third)]
    parameters = [view.model.named_arrays(view.parameters) for view in views]
    expected = {
        name: array for name, array in undisturbed(tmp_path / "other", range(2)).items() if name.startswith("dense.")
    }
    assert_same({f"dense.{name}": array for name, array in parameters[1].items()}, expected)
    assert_same(parameters[1], parameters[2])
    assert any((parameters[0][name] != parameters[1][name]).any() for name in parameters[0])
    assert [view.meta.exact_state for view in views] == [NO_STATE] * 3


def test_followers_get_the_parameters_when_they_have_moved(tmp_path) -> None:
    run = PacedRun(tmp_path / "run", EAGER)
    run.step(0)
    carried, _ = run.net.take(exact=False)
    assert any(name.startswith("dense.") for name in carried)
    run.kill()


def test_bfloat16_is_for_followers_only(tmp_path) -> None:
    run = PacedRun(tmp_path / "run", EAGER, IN_BFLOAT16)
    run.step(0, 1)
    number = run.publish(exact=True)
    run.log.sync()
    exact = undisturbed(tmp_path / "other", range(2))
    view = run.view_at(number)
    for name, array in view.model.named_arrays(view.parameters).items():
        original = exact[f"dense.{name}"]
        rounded = from_bfloat16(to_bfloat16(original)) if original.dtype == np.float32 else original
        np.testing.assert_array_equal(array, rounded)
    run.restart()
    assert_same(snapshot(run.state), exact)
    run.kill()


def test_a_small_net_in_bfloat16_is_exact_too(tmp_path) -> None:
    run = PacedRun(tmp_path / "run", IN_BFLOAT16)
    run.step(0, 1)
    number = run.publish()
    run.restart()
    assert run.log.start_head.number == number
    assert_same(snapshot(run.state), undisturbed(tmp_path / "other", range(2)))
    run.kill()


def test_a_base_is_made_of_an_exact_version(run: PacedRun, tmp_path) -> None:
    run.step(0)
    exact = run.publish(exact=True)
    run.log.sync()
    run.step(1)
    run.publish()
    path = compact_log(run.log.directory, window_samples=run.config.train.window_samples)
    assert path is not None
    base = run.log.directory.open_base()
    assert base.head.number == exact
    shutil.rmtree(run.log.config.path / state_name(exact))
    run.restart()
    assert run.log.start_head.number == exact
    assert_same(snapshot(run.state), undisturbed(tmp_path / "other", range(1)))
    run.step(1)
    run.publish(exact=True)
    run.log.sync()
    run.publish()
    run.log.sync()
    assert compact_log(run.log.directory, window_samples=run.config.train.window_samples) is not None
    errors = verify(run.log.directory, deep=True).errors
    assert not [error for error in errors if "hash" not in error.what]  # the ids of these clicks are no hashes


def test_a_rollback_restores_the_newest_exact_version_at_or_before_the_named_one(run: PacedRun, tmp_path) -> None:
    run.step(0)
    exact = run.publish(exact=True)
    run.step(1)
    named = run.publish()
    run.step(2)
    run.publish()
    assert run.roll_back(named).meta.restores == exact
    assert run.log.ends_exact
    run.restart()
    expected = undisturbed(tmp_path / "other", range(1))
    found_now = snapshot(run.state)
    assert_same(
        {n: a for n, a in found_now.items() if n != "status"}, {n: a for n, a in expected.items() if n != "status"}
    )


def test_a_follower_of_dropped_versions_serves_them_until_the_log_has_passed_them(run: PacedRun) -> None:
    run.step(0)
    run.publish(exact=True)
    run.log.sync()
    follower = Follower(run.log.directory)
    run.step(1, 2)
    dropped = run.publish()
    follower.poll()
    assert follower.view.version == dropped
    run.restart()
    follower.poll()
    assert follower.view.version == dropped
    run.step(1)
    run.forget(1)
    number = run.publish(exact=True)
    wait_until(lambda: follower.poll() or follower.view.version == number)
    fresh = run.view_at(number)
    assert follower.view.head == fresh.head
    assert_same(follower.view.model.named_arrays(follower.view.parameters), fresh.model.named_arrays(fresh.parameters))
    users = np.zeros(40, np.uint16), np.arange(40)
    rows, status = follower.view.lookup(*users)
    np.testing.assert_array_equal(rows, fresh.lookup(*users)[0])
    assert status[1] != KNOWN
    assert status[1] in (UNKNOWN, 3)
    follower.close()


def test_an_exact_end_shows_followers_the_net_as_it_is(run: PacedRun, tmp_path) -> None:
    run.step(0)
    run.publish()
    assert not run.net.is_shown
    run.step(1)
    view = run.view_at(run.publish(exact=True))
    assert run.net.is_shown
    parameters = {f"dense.{name}": array for name, array in view.model.named_arrays(view.parameters).items()}
    expected = undisturbed(tmp_path / "other", range(2))
    assert_same(parameters, {name: expected[name] for name in parameters})
    run.log.wait_for_state()
    run.restart()
    assert not run.net.is_shown  # an exact state may be newer than what followers have


@pytest.mark.parametrize("layers", [(SLOW,), (EAGER, IN_BFLOAT16)], ids=["float32", "bfloat16"])
def test_every_version_has_the_wide_parts_arrays_exactly(tmp_path, layers) -> None:
    wide = {"model": {"wide": True, "crosses": 4}}
    run = PacedRun(tmp_path / "run", *layers, model=wide)
    other = PacedRun(tmp_path / "other", model=wide)
    run.step(0, 1)
    run.publish(exact=True)
    run.log.wait_for_state()  # else the kill may come before it is written, and the restart begins earlier
    for number in range(2, 5):
        run.step(number)
        published = run.view_at(run.publish()).wide.named()
        for name, array in run.state.learner.wide.arrays.named().items():
            np.testing.assert_array_equal(published[name], array, err_msg=name)
    run.restart()
    assert run.state.samples_trained == 2 * 32
    run.step(*range(2, 6))
    other.step(*range(6))
    assert_same(snapshot(run.state), snapshot(other.state))
    run.kill()
    other.kill()
