from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from springtide.app.errors import UserError
from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.spill_gc import SpillGC
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.state.unpublished import sample_times
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import FORGOTTEN, UNKNOWN, View
from tests.app.training.configs import NET_ALONE, make_config
from tests.app.training.random_clicks import SCHEMA, make_batch


def snapshot(state: TrainingState) -> dict[str, np.ndarray]:
    """Everything, as a base would hold it, and every row."""
    arrays = state.base_arrays()
    features = np.repeat(np.arange(3, dtype=np.uint16), 2000)
    rows, status = state.learner.table.find(features, np.tile(np.arange(2000), 3))
    # expired: reported while its record is retained
    return arrays | {"rows": rows, "status": np.where(status == FORGOTTEN, UNKNOWN, status)}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def learn(state: TrainingState, log: LogWriter, numbers: range, *, every: int = 3, ahead: bool = False) -> None:
    next_batch = None
    for number in numbers:
        batch = next_batch or make_batch(number)
        next_batch = make_batch(number + 1) if ahead and number + 1 in numbers else None
        state.learn(batch, next_batch=next_batch)
        if number % every == every - 1:
            log.append(*state.checkpoint(created_ms=number, complete_until_ms=number))


def end(state: TrainingState, log: LogWriter) -> None:
    log.close()
    state.learner.table.close()


POLICIES = "[features.item_id]\nttl_seconds = 0.2\n[features.genres]\nadmission = { min_count = 5 }\n"
LFU = 'eviction = "lfu"\nadmission = { sketch_bytes = 2048, decay_every_samples = 150 }'
BFLOAT16 = 'admission = { sketch_bytes = 2048 }\ndtype = "bfloat16"\noptimizer = { name = "adam", lr = 0.01 }'


@pytest.mark.parametrize(
    ("device_bytes", "table", "more"),
    [
        ("8MiB", "", ""),
        ("24KiB", "", ""),
        ("24KiB", "host_bytes = '16KiB'", POLICIES.replace("admission = { min_count = 5 }", "")),
        (
            "24KiB",
            'eviction = "lfu"\nadmission = { sketch_bytes = 2048, decay_every_samples = 150 }',
            POLICIES,
        ),
        ("24KiB", 'eviction = "custom"\nscore = "age"', "[features.item_id]\nquota_bytes = 4096\n"),
        (
            "48KiB",
            'admission = { sketch_bytes = 2048 }\ndtype = "bfloat16"\noptimizer = { name = "adam", lr = 0.01 }',
            POLICIES,
        ),
        ("24KiB", 'optimizer = { name = "ftrl", lr = 0.1 }', "[features.genres]\npooling = 'max'\n"),
    ],
    ids=["roomy", "tight", "host+ttl", "lfu+ttl+admission", "custom+quota", "bfloat16+adam+ttl", "ftrl+max"],
)
def test_an_interrupted_run_resumes_bitwise(tmp_path, device_bytes, table, more):
    config = make_config(tmp_path / "whole", device_bytes, more, table)
    whole_log = LogWriter.open(config.log, schema=config.schema)
    whole = load_state(config, whole_log)
    learn(whole, whole_log, range(30))

    config = make_config(tmp_path / "interrupted", device_bytes, more, table)
    for start, stop in [(0, 11), (9, 20), (18, 30)]:  # what came after the newest version is learned again
        log = LogWriter.open(config.log, schema=config.schema)
        state = load_state(config, log)
        assert state.samples_trained == start * 32
        learn(state, log, range(start, stop), ahead=True)
        if stop < 30:
            end(state, log)

    assert_same(snapshot(state), snapshot(whole))
    ours, theirs = state.meta(0), whole.meta(0)
    assert (ours.scores, ours.dead_letters, ours.samples_trained, ours.step) == (
        theirs.scores,
        theirs.dead_letters,
        theirs.samples_trained,
        theirs.step,
    )
    assert (ours.positions, ours.event_clock_ms, ours.trainer) == (
        theirs.positions,
        theirs.event_clock_ms,
        theirs.trainer,
    )
    end(state, log)
    end(whole, whole_log)


def test_segments_and_drift_of_an_interrupted_run_resume_bitwise(tmp_path):
    """Every start reads a base that another process wrote, and versions after it."""
    more = '[scores]\nby = ["user_id"]\nsegment_bytes = "64KiB"\nreference_samples = 150\n'
    config = make_config(tmp_path / "whole", more=more, train="window_samples = 100")
    whole_log = LogWriter.open(config.log, schema=config.schema)
    whole = load_state(config, whole_log)
    learn(whole, whole_log, range(30))

    config = make_config(tmp_path / "interrupted", more=more, train="window_samples = 100")
    for start, stop in [(0, 11), (9, 20), (18, 30)]:
        log = LogWriter.open(config.log, schema=config.schema)
        state = load_state(config, log)
        learn(state, log, range(start, stop - 4))
        log.sync()
        learn(state, log, range(stop - 4, stop))
        if stop < 30:
            end(state, log)
            assert compact_log(log.directory, window_samples=100) is not None
    assert_same(snapshot(state), snapshot(whole))
    # without texts: those of values that have not come since a restart are not known
    details = state.scores.detailed_document(lambda feature, row_id: str(row_id))
    assert details == whole.scores.detailed_document(lambda feature, row_id: str(row_id))
    assert details["drift"]["reference_until"] == 750
    assert len(details["segments"]["user_id"]) == 5  # four values and the others
    end(state, log)
    end(whole, whole_log)


def test_mapping_a_base_frees_the_spill_and_changes_no_row(tmp_path):
    """Run as the trainer does, with a compactor that makes a base every few versions."""
    config = make_config(tmp_path / "whole", "24KiB", POLICIES + NET_ALONE, LFU)
    whole_log = LogWriter.open(config.log, schema=config.schema)
    whole = load_state(config, whole_log)
    learn(whole, whole_log, range(40))

    config = make_config(tmp_path / "merged", "24KiB", POLICIES + NET_ALONE, LFU)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    table, destroyed = state.learner.table, []
    mapping = table.map_base
    table.map_base = lambda base, generation: (destroyed.append(generation), mapping(base, generation))
    generations = SpillGC(table.tables, log.directory, state.base_number)
    for number in range(40):
        state.learn(make_batch(number))
        generations.on_checkpoint(log.append(*state.checkpoint(created_ms=1, complete_until_ms=1)).number)
        log.sync()
        if number % 4 == 3:
            assert compact_log(log.directory, window_samples=100) is not None
            generations.map_newest_base(log.last_encoded.number)
    assert [generation for generation in destroyed if generation >= 0] == list(range(10))
    counters = table.counters()
    needed = ("recalled_from_base", "recalled_from_spill", "expired", "not_admitted")
    assert min(counters[name] for name in needed) > 0, counters
    assert_same(snapshot(state), snapshot(whole))
    end(state, log)
    end(whole, whole_log)


def test_a_version_holds_positions_clocks_and_counts(tmp_path):
    config = make_config(tmp_path)
    log = LogWriter.open(config.log, schema=SCHEMA)
    state = load_state(config, log)
    learn(state, log, range(6), every=6)
    log.sync()
    (record,) = LogDirectory(config.log.path).records(log.start_tip)
    meta = record.meta
    assert meta.positions == {"clicks/0": {"topic_id": "topic-1", "offset": 192}}
    assert meta.dead_letters == {"bad_json": 2}
    assert meta.samples_trained == 192
    assert len(meta.record_ms) == 64
    assert (meta.record_ms[0], meta.record_ms[-1]) == (1_600_000_000_005, 1_600_000_000_196)
    assert meta.event_clock_ms == 1_600_000_000_191
    assert meta.fingerprint == SCHEMA.fingerprint()
    tensors = record.tensors()
    assert tensors["texts.bytes"].tobytes() == b"".join(f"text {n}".encode() for n in range(6))
    assert len(tensors["state.scores.logits"]) == 192
    assert tensors["rows.count"].sum() > 192 * 2
    end(state, log)


def test_a_heartbeat_carries_no_arrays(tmp_path):
    config = make_config(tmp_path)
    log = LogWriter.open(config.log, schema=SCHEMA)
    state = load_state(config, log)
    learn(state, log, range(3))
    meta, arrays = state.checkpoint(created_ms=9, complete_until_ms=77)
    assert arrays == {}
    assert meta.complete_until_ms == 77
    assert meta.record_ms == []
    assert meta.positions["clicks/0"]["offset"] == 96
    end(state, log)


def test_followers_predict_what_the_trainer_predicts(tmp_path):
    config = make_config(tmp_path, more=NET_ALONE)
    log = LogWriter.open(config.log, schema=SCHEMA)
    state = load_state(config, log)
    learn(state, log, range(9))
    log.sync()
    directory = LogDirectory(config.log.path)
    view = View.open(directory.newest_base())
    for record in directory.records(log.start_tip):
        view = view.apply(record)
    batch = make_batch(40)
    served = view.predict(batch.features)
    learned = torch.sigmoid(torch.from_numpy(state.learner.step(batch).logits_NL)).numpy()
    np.testing.assert_allclose(served, learned, atol=1e-6)  # the whole batch: exp is not the same on both sides
    end(state, log)


def test_a_table_without_room_is_a_usage_error(tmp_path):
    config = make_config(tmp_path, "1KiB")
    with LogWriter.open(config.log, schema=SCHEMA) as log, pytest.raises(UserError, match=r"\[table\] device_bytes"):
        load_state(config, log)
    assert not (tmp_path / "spill").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_a_usage_error(tmp_path):
    config = make_config(tmp_path)
    config = replace(config, train=structs.replace(config.train, device="cuda"))
    with LogWriter.open(config.log, schema=SCHEMA) as log, pytest.raises(UserError, match="needs an NVIDIA GPU"):
        load_state(config, log)
    assert not (tmp_path / "spill").exists()


def test_the_host_tier_is_reported_beside_the_others(tmp_path):
    config = make_config(tmp_path, "24KiB", table="host_bytes = '16KiB'")
    log = LogWriter.open(config.log, schema=SCHEMA)
    state = load_state(config, log)
    learn(state, log, range(9))
    rows, sizes = state.learner.table.rows_by_tier(), state.learner.table.bytes_by_tier()
    assert min(rows.values()) > 0
    assert rows.keys() == {"device", "host", "disk"}
    assert sizes.keys() == {"device", "host", "disk", "spill_memory"}
    assert sizes["host"] <= 16 << 10
    assert state.learner.table.counters()["hits_host"] > 0
    end(state, log)


def test_a_changed_limit_that_no_longer_fits_the_configuration_is_named(tmp_path):
    config = make_config(tmp_path)
    log = LogWriter.open(config.log, schema=SCHEMA)
    state = load_state(config, log)
    state.change_limits({(None, "lr"): 0.9})
    learn(state, log, range(3))
    end(state, log)
    config = make_config(tmp_path, table='optimizer = { name = "rowwise-adagrad", lr = 0.05, weight_decay = 2.0 }')
    log = LogWriter.open(config.log, schema=SCHEMA)
    with pytest.raises(UserError, match=r"lr was changed at run time .* weight_decay"):
        load_state(config, log)
    log.close()


def test_at_most_64_times_are_kept_with_the_oldest_and_the_newest():
    assert sample_times([]) == []
    assert sample_times([np.array([3, 1, 2])]) == [1, 2, 3]
    picked = sample_times([np.arange(1000), np.array([5000])])
    assert (len(picked), picked[0], picked[-1]) == (64, 0, 5000)
