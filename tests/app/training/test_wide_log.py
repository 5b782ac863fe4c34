"""A log with a wide part: what a trainer that starts again continues with, and what a changed setting keeps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from springtide.app.config.load import Config
from springtide.app.version_log.verify.verify import verify
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide.stream.columns import Batch
from springtide_client.keys import CROSSES
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import NOT_ADMITTED, UNKNOWN, View
from tests.app.training.random_clicks import RANDOM_CLICKS, make_batch
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog

WIDE = """
[table]
device_bytes = "16MiB"
[model]
name = "deepfm"
wide = true
crosses = 4
[train]
batch_size = 512
[log]
log_bytes = "1GiB"
"""


def config_of(folder: Path, *changes: Section) -> Config:
    return config_in(folder, RANDOM_CLICKS, WIDE, *changes)


class Log(LearnedLog):
    """Notes the logits with which samples were scored."""

    samples = 200

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.logits: list[np.ndarray] = []
        observe = self.state.scores.observe

        def noting(logits_NL, *others, **columns):
            self.logits.append(logits_NL.copy())
            observe(logits_NL, *others, **columns)

        self.state.scores.observe = noting

    def rows(self) -> dict[tuple[int, int], bytes]:
        rows = {}
        for table in self.state.learner.table.tables.values():
            exported = table.export()
            lookup = table.lookup(exported.feature, exported.id, np.zeros(len(exported), np.int64))
            columns = table.read_rows(lookup)
            lookup.release()
            rows |= {
                key: columns.values_ND[n].tobytes() + columns.states_NS[n].tobytes() + columns.counts_N[n].tobytes()
                for n, key in enumerate(zip(exported.feature.tolist(), exported.id.tolist(), strict=True))
            }
        return rows


def learned(config: Config, start: int, stop: int) -> tuple[dict[str, np.ndarray], dict, list[np.ndarray]]:
    """Learn batches, each into a version of its own; return the net, the rows and the logits."""
    with Log(config) as made:
        made.learn(range(start, stop), ahead=True)
        return made.state.learner.dense_arrays(), made.rows(), made.logits


def test_a_trainer_that_starts_again_continues_bit_by_bit(tmp_path):
    arrays, rows, logits = learned(config_of(tmp_path / "whole"), 0, 5)
    parts = config_of(tmp_path / "parts")
    _, _, first = learned(parts, 0, 2)
    more, more_rows, second = learned(parts, 2, 5)
    np.testing.assert_array_equal(np.concatenate(logits), np.concatenate([*first, *second]))
    assert arrays.keys() == more.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, more[name], err_msg=name)
    for key, row in more_rows.items():
        assert rows[key] == row, key
    assert any(number == CROSSES for number, _ in rows)
    assert arrays["wide.num_samples_1"].item() == 1000
    assert arrays["wide.pair_is_live_P"].sum() == 4
    report = verify(LogDirectory(parts.log.path))
    assert not report.errors


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"wide": False}},
        {"model": {"crosses": 0}},
        {"schema": {"dense": ["price"]}},
        {"schema": {"categorical": ["item_id", "user_id"]}},
    ],
    ids=["without the wide part", "without crosses", "a number less", "features swapped"],
)
def test_changed_settings_go_on_with_what_fits(tmp_path, change):
    learned(config_of(tmp_path), 0, 2)
    with LearnedLog(config_of(tmp_path, change)) as changed:
        changed.state.learn(make_batch(2, 50, schema=changed.config.schema))
        assert np.isfinite(changed.state.loss)


NUM_BATCHES = 24


CHANGES = {
    "crosses": {},
    "labels": {"schema": {"label": None, "labels": ["click", "order"]}, "model": {"crosses": 0}},
    "admission": {"features": {"item_id": {"admission": {"min_count": 5}}}, "table": {"device_bytes": "64MiB"}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_first_sample_of_a_batch_is_scored_as_it_is_served(tmp_path, change):
    config = config_of(tmp_path, CHANGES[change])
    seen: set[int] = set()
    is_counted, num_compared = change == "admission", 0
    with Log(config) as made:
        state, directory, scored = made.state, made.directory, made.logits
        plain = View.open(directory.newest_base())
        compiled = View.open(directory.newest_base(), plain, LayerSearchCache(), compiled_steps())
        for number in range(NUM_BATCHES):
            batch = make_batch(number, 24, config.schema)
            batch.features.categorical_NC[:, 1] %= 60
            before = []
            for view in (plain, compiled):
                predicted = view.predict_wide(batch.features)
                before.append(predicted.logits_NL.astype(np.float32))
                seen |= set(predicted.status_K.tolist())
            np.testing.assert_array_equal(*before)
            parts = [(0, 1), (1, 24)] if is_counted else [(0, 24)]
            first, *others = [cut(batch, *part) for part in parts]
            served_NL = plain.predict_wide(first.features).logits_NL.astype(np.float32)
            state.learn(first)
            assert state.scores.num_samples  # counted now
            # the samples after the first are scored by what the ones before them taught
            # the trainer counts an id as often as its batch has it before it admits it, a call counts it once
            items = [first.features.categorical_NC[0, 1], *first.features.lists[1].ids_M]
            if not (is_counted and len(set(items)) < len(items)):
                # the exported net may round its last bit otherwise than the trainer's
                np.testing.assert_allclose(scored[-1][0], served_NL[0], rtol=0, atol=1e-6)
                num_compared += 1
            for part in others:
                state.learn(part)
            assert state.scores.num_samples
            assert not np.array_equal(scored[-1][-1], before[0][-1])
            number = made.checkpoint()
            made.log.sync()
            for record in directory.records(plain.head):
                plain, compiled = plain.apply(record), compiled.apply(record).merged()
            assert plain.version == number
    assert UNKNOWN in seen
    assert (NOT_ADMITTED in seen) == is_counted
    assert num_compared > NUM_BATCHES // 3


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """The samples from `start` to `stop` as a batch."""
    columns = {
        name: getattr(batch, name)[start:stop] for name in ("labels_NL", "weights_N", "event_ms_N", "record_ms_N")
    }
    return replace(batch, features=batch.features.slice(start, stop), dead_letters=(), **columns)
