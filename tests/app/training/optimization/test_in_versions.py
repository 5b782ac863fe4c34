"""Schedule, accumulation and averages in the log: a restart goes on bit by bit, and followers get the averages."""

import numpy as np
import pytest

from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.verify.verify import verify
from springtide_client.format.tensors import from_bfloat16, to_bfloat16
from springtide_client.model.view import View
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.app.training.state.test_net_publisher import SLOW, PacedRun
from tests.app.training.state.test_training_state import assert_same, snapshot
from tests.support.config import NET_ALONE, Section, config_in
from tests.support.learned_log import LearnedLog

TRAIN = """
[train]
lr_schedule = { name = "cosine", warmup_samples = 200, decay_samples = 400, rows = true }
clip_norm = 0.05
accumulate_batches = 4
ema_half_life_samples = 100
optimizer = { name = "adamw", lr = 0.01, weight_decay = 0.1 }
"""
CHANGES = {
    "optimizer": {"train": {"optimizer": {"name": "sgd", "lr": 0.01, "weight_decay": None}}},
    "schema": {"schema": {"dense": ["age", "price", "new"]}},
}
WIDE_AND_TABLES = {"model": {"wide": True}, "features": {"genres": {"dim": 2}}}


def test_an_interrupted_run_goes_on_bit_by_bit(tmp_path) -> None:
    """Versions fall inside the warm-up, inside accumulations and while the averages are young."""
    runs = []
    for name, parts in (("whole", [(0, 11)]), ("interrupted", [(0, 5), (3, 8), (6, 11)])):
        run = LearnedLog(config_in(tmp_path / name, RANDOM_CLICKS, TRAIN, WIDE_AND_TABLES))
        for start, stop in parts:
            if start:
                run.restart()
            assert run.state.samples_trained == run.state.learner.num_samples == start * 32
            run.learn(range(start, stop), every=3)
        runs.append(run)
    whole, state = (run.state for run in runs)
    assert_same(snapshot(state), snapshot(whole))
    assert state.meta(0).trainer == whole.meta(0).trainer
    assert state.learner.clipped_steps > 0
    assert state.learner.update.gathered.num_gathered == 11 % 4
    assert state.learner.update.lr == whole.learner.update.lr < 0.01
    assert state.learner.table.step_lr == pytest.approx(0.05 * state.learner.update.lr / 0.01)
    state.change_limits({(None, "lr"): 0.02})
    assert state.learner.table.step_lr == pytest.approx(0.02 * state.learner.update.lr / 0.01)
    for run in runs:
        run.end()


def check_served(view: View, state: TrainingState, *, bfloat16: bool = False) -> None:
    """A follower has the averages, and of statistics what the trainer has."""
    served, averages = view.model.named_arrays(view.parameters), state.learner.update.averages.named()
    for name, trained in state.learner.dense_tensors().items():
        expected = averages.get(name, trained).numpy()
        if bfloat16 and expected.dtype == np.float32:
            expected = from_bfloat16(to_bfloat16(expected))
        np.testing.assert_array_equal(served[name], expected, err_msg=name)
    assert any(
        (average != dict(state.learner.model.named_parameters())[name]).any() for name, average in averages.items()
    )


def averaged_run(folder, *layers: Section) -> PacedRun:
    return PacedRun(folder, {"table": {"device_bytes": "8MiB"}}, TRAIN, *layers)


def of_net(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name.startswith(("dense.", "state."))}


@pytest.mark.parametrize(("exact_bytes", "dtype"), [("1GiB", "float32"), ("1GiB", "bfloat16"), ("0B", "bfloat16")])
def test_followers_get_the_averages_and_a_trainer_both(tmp_path, exact_bytes, dtype) -> None:
    """Also from a base; whether versions carry the net whole or at a pace of its own."""
    run = averaged_run(tmp_path, SLOW, {"log": {"exact_bytes": exact_bytes, "dense_dtype": dtype}})
    run.step(*range(6))
    number = run.publish(exact=True)
    check_served(run.view_at(number), run.state, bfloat16=dtype == "bfloat16")
    before = snapshot(run.state)
    run.log.sync()
    run.publish()
    run.log.sync()
    assert compact_log(run.log.directory, window_samples=run.config.train.window_samples) is not None
    errors = verify(run.log.directory, deep=True).errors
    assert not [error for error in errors if "hash" not in error.what]  # the ids of these clicks are no hashes
    check_served(run.view_at(number), run.state, bfloat16=dtype == "bfloat16")
    run.step(6)
    run.publish(exact=True)
    assert run.roll_back(number).meta.restores == number
    rolled_back = run.log.last_number
    run.restart()
    assert_same(of_net(snapshot(run.state)), of_net(before))
    check_served(run.view_at(rolled_back), run.state)
    run.kill()


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_averages_and_gathered_gradients_go_on_under_changed_settings(tmp_path, change) -> None:
    run = averaged_run(tmp_path, SLOW)
    run.step(*range(6))
    run.publish(exact=True)
    before = snapshot(run.state)
    run.log.sync()
    run.kill()
    run.config = config_in(tmp_path, RANDOM_CLICKS, TRAIN, SLOW, NET_ALONE, change)
    run.open()
    now = snapshot(run.state)
    fits = {name for name, array in now.items() if name in before and array.shape == before[name].shape}
    for prefix in ("state.average.", "state.parameters.", "state.accumulated."):
        names = {name for name in before if name.startswith(prefix)} & fits
        assert names
        for name in names:
            np.testing.assert_array_equal(now[name], before[name], err_msg=name)
    check_served(run.view_at(run.log.start_head.number), run.state)
    run.kill()


def test_averages_begin_at_the_parameters_and_end_with_the_setting(tmp_path) -> None:
    """The setting is no mark in the log: the next version carries what followers get from now on."""
    before = {}
    for place, setting in enumerate((0, 100, 0)):
        run = LearnedLog(config_in(tmp_path, RANDOM_CLICKS, NET_ALONE, {"train": {"ema_half_life_samples": setting}}))
        state = run.state
        arrays = state.base_arrays()
        if place == 1:
            averages = state.learner.update.averages.named()
            assert all(np.array_equal(arrays[f"state.parameters.{name}"], one) for name, one in averages.items())
        assert any(name.startswith("state.average.") for name in arrays) == (place == 1)
        if place:
            trained = {name: array for name, array in arrays.items() if name.startswith("state.optimizer.")}
            assert_same(trained, {name: before[name] for name in trained})
        run.learn(range(3 * place, 3 * place + 3), every=3)
        before = state.base_arrays()
        run.end()
