"""At every version a server and HotModel score as the trainer would, up to the last bit of the net's logits."""

from dataclasses import replace

import numpy as np
import pytest

from springtide.app.training.bootstrap import load_state
from springtide.app.version_log.write.writer import LogWriter
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide.stream.columns import Batch
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import NOT_ADMITTED, UNKNOWN, View
from tests.app.training.random_clicks import make_batch
from tests.app.training.test_wide_log import Log

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

        def noting(logits_NL, *others):
            scored.append(np.array(logits_NL))
            observe(logits_NL, *others)

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
            # the samples after the first are scored by what the ones before them taught
            # the trainer counts an id as often as its batch has it before it admits it, a call counts it once
            items = [first.features.categorical_NC[0, 1], *first.features.lists[1].ids_M]
            if not (is_counted and len(set(items)) < len(items)):
                # the exported net may round its last bit otherwise than the trainer's
                np.testing.assert_allclose(scored[-1][0], served_NL[0], rtol=0, atol=1e-6)
                num_compared += 1
            for part in others:
                state.learn(part)
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
