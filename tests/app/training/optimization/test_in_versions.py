"""Schedule, accumulation and averages in the log: a restart goes on bit by bit, and followers get the averages."""

import numpy as np
import pytest

from springtide.app.config.load import load_config
from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.commands.rollback import build_rollback
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.verify.verify import verify
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.tensors import from_bfloat16, to_bfloat16
from springtide_client.model.view import View
from tests.app.training.configs import NET_ALONE, make_config
from tests.app.training.state.test_net_publisher import SLOW, PacedRun
from tests.app.training.state.test_training_state import assert_same, end, learn, snapshot

TRAIN = """
lr_schedule = { name = "cosine", warmup_samples = 200, decay_samples = 400, rows = true }
clip_norm = 0.05
accumulate_batches = 4
ema_half_life_samples = 100
optimizer = { name = "adamw", lr = 0.01, weight_decay = 0.1 }
"""
WIDE = "[model]\nwide = true\n"
CHANGES = [
    ('name = "adamw", lr = 0.01, weight_decay = 0.1', 'name = "sgd", lr = 0.01'),
    ('dense = ["age", "price"]', 'dense = ["age", "price", "new"]'),
]
TABLES = "[features.genres]\ndim = 2\n"


def test_an_interrupted_run_goes_on_bit_by_bit(tmp_path) -> None:
    """Versions fall inside the warm-up, inside accumulations and while the averages are young."""
    runs = []
    for name, parts in (("whole", [(0, 11)]), ("interrupted", [(0, 5), (3, 8), (6, 11)])):
        config = make_config(tmp_path / name, more=WIDE + TABLES, train=TRAIN)
        for start, stop in parts:
            log = LogWriter.open(config.log, schema=config.schema)
            state = load_state(config, log)
            assert state.samples_trained == state.learner.num_samples == start * 32
            learn(state, log, range(start, stop))
            if stop < 11:
                end(state, log)
        runs.append((state, log))
    (whole, _), (state, _) = runs
    assert_same(snapshot(state), snapshot(whole))
    assert state.meta(0).trainer == whole.meta(0).trainer
    assert state.learner.clipped_steps > 0
    assert state.learner.update.gathered.num_gathered == 11 % 4
    assert state.learner.update.lr == whole.learner.update.lr < 0.01
    assert state.learner.table.step_lr == pytest.approx(0.05 * state.learner.update.lr / 0.01)
    state.change_limits({(None, "lr"): 0.02})
    assert state.learner.table.step_lr == pytest.approx(0.02 * state.learner.update.lr / 0.01)
    for each in runs:
        end(*each)


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


class AveragedRun(PacedRun):
    def __init__(self, folder, more: str) -> None:
        self.config, self.seconds = make_config(folder, more=more + NET_ALONE, train=TRAIN), 0.0
        self.start()


def of_net(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name.startswith(("dense.", "state."))}


@pytest.mark.parametrize(("exact_bytes", "dtype"), [("1GiB", "float32"), ("1GiB", "bfloat16"), ("0B", "bfloat16")])
def test_followers_get_the_averages_and_a_trainer_both(tmp_path, exact_bytes, dtype) -> None:
    """Also from a base; whether versions carry the net whole or at a pace of its own."""
    run = AveragedRun(tmp_path, SLOW.replace("0\n", f'"{exact_bytes}"\n', 1) + f'dense_dtype = "{dtype}"\n')
    run.learn(*range(6))
    number = run.publish(exact=True)
    check_served(run.view(number), run.state, bfloat16=dtype == "bfloat16")
    before = snapshot(run.state)
    run.log.sync()
    run.publish()
    run.log.sync()
    assert compact_log(run.log.directory, window_samples=run.config.train.window_samples) is not None
    errors = verify(run.log.directory, deep=True).errors
    assert not [error for error in errors if "hash" not in error.what]  # the ids of these clicks are no hashes
    check_served(run.view(number), run.state, bfloat16=dtype == "bfloat16")
    run.learn(6)
    run.publish(exact=True)
    run.log.sync()
    found = build_rollback(run.log.directory, number, window_samples=run.config.train.window_samples)
    assert found.meta.restores == number
    tip = run.log.append(found.meta, found.arrays)
    run.log.sync()
    run.restart()
    assert_same(of_net(snapshot(run.state)), of_net(before))
    check_served(run.view(tip.number), run.state)
    run.kill()


@pytest.mark.parametrize("change", CHANGES, ids=["optimizer", "schema"])
def test_averages_and_gathered_gradients_go_on_under_changed_settings(tmp_path, change) -> None:
    run = AveragedRun(tmp_path, SLOW)
    run.learn(*range(6))
    run.publish(exact=True)
    before = snapshot(run.state)
    run.log.sync()
    run.kill()
    path = run.config.path
    path.write_text(path.read_text().replace(*change))
    run.config = load_config(path)
    run.start()
    now = snapshot(run.state)
    fits = {name for name, array in now.items() if name in before and array.shape == before[name].shape}
    for prefix in ("state.average.", "state.parameters.", "state.accumulated."):
        names = {name for name in before if name.startswith(prefix)} & fits
        assert names
        for name in names:
            np.testing.assert_array_equal(now[name], before[name], err_msg=name)
    check_served(run.view(run.log.start_tip.number), run.state)
    run.kill()


def test_averages_begin_at_the_parameters_and_end_with_the_setting(tmp_path) -> None:
    """The setting is no mark in the log: the next version carries what followers get from now on."""
    before = {}
    for place, setting in enumerate(("0", "100", "0")):
        config = make_config(tmp_path, more=NET_ALONE, train=f"ema_half_life_samples = {setting}")
        log = LogWriter.open(config.log, schema=config.schema)
        state = load_state(config, log)
        arrays = state.base_arrays()
        if place == 1:
            averages = state.learner.update.averages.named()
            assert all(np.array_equal(arrays[f"state.parameters.{name}"], one) for name, one in averages.items())
        assert any(name.startswith("state.average.") for name in arrays) == (place == 1)
        if place:
            trained = {name: array for name, array in arrays.items() if name.startswith("state.optimizer.")}
            assert_same(trained, {name: before[name] for name in trained})
        learn(state, log, range(3 * place, 3 * place + 3))
        before = state.base_arrays()
        end(state, log)
