"""A log with a wide part: what a trainer that starts again continues with, and what a changed setting keeps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.training.bootstrap import load_state, state_without_log
from springtide.app.training.device import resolve_device
from springtide.app.version_log.verify.verify import verify
from springtide.app.version_log.write.writer import LogWriter
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide.stream.columns import Batch
from springtide_client.keys import CROSSES
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import NOT_ADMITTED, UNKNOWN, View
from tests.app.training.random_clicks import make_batch

CONFIG = """
name = "wide"

[schema]
label = "click"
timestamp = "ts"
weight = "w"
categorical = ["user_id", "item_id"]
multi_value = ["genres"]
sequence = ["last_items"]
dense = ["age", "price"]
share = { last_items = "item_id" }

[table]
dim = 4
device_bytes = "16MiB"
disk_path = "FOLDER/spill"

[model]
name = "deepfm"
wide = true
crosses = 4

[log]
path = "FOLDER/log"
log_bytes = "1GiB"
"""


class Log:
    def __init__(self, folder: Path, *edits: tuple[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        text = CONFIG.replace("FOLDER", str(folder))
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        (folder / "springtide.toml").write_text(text)
        self.config = load_config(folder / "springtide.toml")

    def learn(self, start: int, stop: int) -> tuple[dict[str, np.ndarray], dict[tuple[int, int], bytes], list]:
        """Learn batches, each into a version of its own; return the net, the rows and the logits."""
        config, logits = self.config, []
        with LogWriter.open(config.log, schema=config.schema) as log:
            state = load_state(config, log)
            observe = state.scores.observe

            def noting(logits_NL, *others, **columns):
                logits.append(logits_NL.copy())
                observe(logits_NL, *others, **columns)

            state.scores.observe = noting
            for number in range(start, stop):
                state.learn(make_batch(number, 200), next_batch=make_batch(number + 1, 200))
                log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
            log.sync()
            rows = {}
            for table in state.learner.table.tables.values():
                exported = table.export()
                lookup = table.lookup(exported.features, exported.ids, np.zeros(len(exported), np.int64))
                columns = table.read_rows(lookup)
                lookup.release()
                rows |= {
                    key: columns.values_ND[n].tobytes() + columns.states_NS[n].tobytes() + columns.counts_N[n].tobytes()
                    for n, key in enumerate(zip(exported.features.tolist(), exported.ids.tolist(), strict=True))
                }
            arrays = state.learner.dense_arrays()
            state.learner.table.close()
        return arrays, rows, logits


def test_a_trainer_that_starts_again_continues_bit_by_bit(tmp_path):
    arrays, rows, logits = Log(tmp_path / "whole").learn(0, 5)
    parts = Log(tmp_path / "parts")
    _, _, first = parts.learn(0, 2)
    more, more_rows, second = parts.learn(2, 5)
    np.testing.assert_array_equal(np.concatenate(logits), np.concatenate([*first, *second]))
    assert arrays.keys() == more.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, more[name], err_msg=name)
    for key, row in more_rows.items():
        assert rows[key] == row, key
    assert any(number == CROSSES for number, _ in rows)
    assert arrays["wide.num_samples_1"].item() == 1000
    assert arrays["wide.pair_is_live_P"].sum() == 4
    report = verify(LogDirectory(parts.config.log.path))
    assert not report.errors


def test_on_a_device_the_wide_part_is_refused_with_what_to_do(tmp_path, monkeypatch):
    device = resolve_device(Log(tmp_path).config.train)
    on_device = device._replace(transfer=object())
    monkeypatch.setattr("springtide.app.training.bootstrap.resolve_device", lambda _: on_device)
    with pytest.raises(UserError, match=r"leave out \[model\] wide"):
        state_without_log(Log(tmp_path).config)


@pytest.mark.parametrize(
    "edits",
    [
        [("wide = true", "wide = false")],
        [("crosses = 4", "crosses = 0")],
        [('dense = ["age", "price"]', 'dense = ["price"]')],
        [('categorical = ["user_id", "item_id"]', 'categorical = ["item_id", "user_id"]')],
    ],
)
def test_changed_settings_go_on_with_what_fits(tmp_path, edits):
    Log(tmp_path).learn(0, 2)
    changed = Log(tmp_path, *edits)
    config = changed.config
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        batch = make_batch(2, 50, schema=config.schema)
        state.learn(batch)
        assert np.isfinite(state.loss)
        state.learner.table.close()


NUM_BATCHES = 24


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [('label = "click"', 'labels = ["click", "order"]'), ("crosses = 4", "crosses = 0")],
        [("[model]", "[features.item_id]\nadmission = { min_count = 5 }\n[model]"), ("16MiB", "64MiB")],
    ],
    ids=["crosses", "labels", "admission"],
)
def test_the_first_sample_of_a_batch_is_scored_as_it_is_served(tmp_path, edits):
    config = Log(tmp_path, *edits).config
    seen: set[int] = set()
    is_counted, num_compared = any("min_count" in text for _, text in edits), 0
    scored: list[np.ndarray] = []
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        observe = state.scores.observe

        def noting(logits_NL, *others, **columns):
            scored.append(np.array(logits_NL))
            observe(logits_NL, *others, **columns)

        state.scores.observe = noting
        directory = LogDirectory(config.log.path)
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
            tip = log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
            log.sync()
            for record in directory.records(plain.tip):
                plain, compiled = plain.apply(record), compiled.apply(record).merged()
            assert plain.tip == tip
        state.learner.table.close()
    assert UNKNOWN in seen
    assert (NOT_ADMITTED in seen) == is_counted
    assert num_compared > NUM_BATCHES // 3


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """The samples from `start` to `stop` as a batch."""
    columns = {
        name: getattr(batch, name)[start:stop] for name in ("labels_NL", "weights_N", "event_ms_N", "record_ms_N")
    }
    return replace(batch, features=batch.features.slice(start, stop), dead_letters=(), **columns)
