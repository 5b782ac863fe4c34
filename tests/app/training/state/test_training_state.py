import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from springtide.app.errors import UserError
from springtide.app.training.state.spill_gc import SpillGC
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.state.unpublished import sample_times
from springtide.app.version_log.compact.merge import compact_log
from springtide_client.model.view import FORGOTTEN, UNKNOWN
from tests.app.training.random_clicks import RANDOM_CLICKS, SCHEMA, make_batch
from tests.support.config import NET_ALONE, config_in
from tests.support.learned_log import LearnedLog


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


@pytest.mark.parametrize(
    ("layers", "message", "reason"),
    [
        ((), "the net is compiled; larger batches learn by autograd", None),
        (('[features.genres]\npooling = "max"\n',), "the net learns by autograd", 'lists are pooled by "max"'),
    ],
    ids=["compiled", "autograd"],
)
def test_a_start_logs_how_the_net_learns(tmp_path, caplog, layers, message, reason):
    with caplog.at_level(logging.INFO), LearnedLog(config_in(tmp_path, RANDOM_CLICKS, *layers)):
        (line,) = [record for record in caplog.records if record.message.startswith("the net ")]
    assert line.message == message
    assert getattr(line, "reason", None) == reason
    assert getattr(line, "max_samples", 0) > 0 or reason is not None


POLICIES = "[features.item_id]\nttl_seconds = 0.2\n[features.genres]\nadmission = { min_count = 5 }\n"
TIGHT = {"table": {"device_bytes": "24KiB"}}
LFU = '[table]\neviction = "lfu"\nadmission = { sketch_bytes = 2048, decay_every_samples = 150 }\n'
BFLOAT16 = """
[table]
device_bytes = "48KiB"
admission = { sketch_bytes = 2048 }
dtype = "bfloat16"
optimizer = { name = "adam", lr = 0.01 }
"""


@pytest.mark.parametrize(
    "layers",
    [
        (),
        (TIGHT,),
        (TIGHT, "[table]\nhost_bytes = '16KiB'\n[features.item_id]\nttl_seconds = 0.2\n"),
        (TIGHT, LFU, POLICIES),
        (TIGHT, '[table]\neviction = "custom"\nscore = "age"\n[features.item_id]\nquota_bytes = 4096\n'),
        (BFLOAT16, POLICIES),
        (TIGHT, '[table]\noptimizer = { name = "ftrl", lr = 0.1 }\n[features.genres]\npooling = "max"\n'),
    ],
    ids=["roomy", "tight", "host+ttl", "lfu+ttl+admission", "custom+quota", "bfloat16+adam+ttl", "ftrl+max"],
)
def test_an_interrupted_run_resumes_bitwise(tmp_path, layers):
    whole = LearnedLog(config_in(tmp_path / "whole", RANDOM_CLICKS, *layers))
    whole.learn(range(30), every=3)
    run = LearnedLog(config_in(tmp_path / "interrupted", RANDOM_CLICKS, *layers))
    run.learn_interrupted()
    assert_same(snapshot(run.state), snapshot(whole.state))
    ours, theirs = run.state.meta(0), whole.state.meta(0)
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
    run.end()
    whole.end()


def test_segments_and_drift_of_an_interrupted_run_resume_bitwise(tmp_path):
    """Every start reads a base that another process wrote, and versions after it."""
    more = '[scores]\nby = ["user_id"]\ngroup = "user_id"\nsegment_bytes = "64KiB"\nreference_samples = 150\n'
    more += '[schema]\nrequest = "item_id"\n'
    more += "[train]\nwindow_samples = 100\n"
    whole = LearnedLog(config_in(tmp_path / "whole", RANDOM_CLICKS, more))
    whole.learn(range(30), every=3)
    run = LearnedLog(config_in(tmp_path / "interrupted", RANDOM_CLICKS, more))
    for start, stop in [(0, 11), (9, 20), (18, 30)]:
        if start:
            run.end()
            assert compact_log(run.directory, window_samples=100) is not None
            run.open()
        run.learn(range(start, stop - 4), every=3)
        run.log.sync()
        run.learn(range(stop - 4, stop), every=3)
    assert_same(snapshot(run.state), snapshot(whole.state))
    # without texts: those of values that have not come since a restart are not known
    details = run.state.scores.detailed_document(lambda feature, row_id: str(row_id))
    assert details == whole.state.scores.detailed_document(lambda feature, row_id: str(row_id))
    assert details["drift"]["reference_until"] == 750
    assert details["ranking"]["group"]["whole"]["samples"] == 30 * 32
    assert len(details["segments"]["user_id"]) == 5  # four values and the others
    run.end()
    whole.end()


def learn_beside_a_compactor(run: LearnedLog, num_batches: int, **options) -> None:
    """Learn as the trainer does, with a base every few versions."""
    generations = SpillGC(run.state.learner.table.tables, run.directory, run.state.base_number, **options)
    for number in range(num_batches):
        run.state.learn(make_batch(number))
        generations.on_checkpoint(run.checkpoint())
        run.log.sync()
        if number % 4 == 3:
            assert compact_log(run.directory, window_samples=100) is not None
            assert generations.map_newest_base(run.log.last_encoded.number)


def test_mapping_a_base_frees_the_spill_and_changes_no_row(tmp_path):
    layers = RANDOM_CLICKS, TIGHT, LFU, POLICIES, NET_ALONE
    with (
        LearnedLog(config_in(tmp_path / "whole", *layers)) as whole,
        LearnedLog(config_in(tmp_path / "merged", *layers)) as run,
    ):
        whole.learn(range(40), every=3)
        table, destroyed = run.state.learner.table, []
        mapping = table.map_base
        table.map_base = lambda base, generation: (destroyed.append(generation), mapping(base, generation))
        learn_beside_a_compactor(run, 40)
        assert [generation for generation in destroyed if generation >= 0] == list(range(10))
        counters = table.counters()
        needed = ("recalled_from_base", "recalled_from_spill", "expired", "not_admitted")
        assert min(counters[name] for name in needed) > 0, counters
        assert_same(snapshot(run.state), snapshot(whole.state))


@pytest.fixture
def run(tmp_path) -> Iterator[LearnedLog]:
    with LearnedLog(config_in(tmp_path, RANDOM_CLICKS)) as made:
        yield made


def test_a_version_holds_positions_clocks_and_counts(run):
    run.learn(range(6), every=6)
    run.log.sync()
    (record,) = run.directory.records(run.log.start_head)
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


def test_a_heartbeat_carries_no_arrays(run):
    run.learn(range(3), every=3)
    meta, arrays = run.state.checkpoint(created_ms=9, complete_until_ms=77)
    assert arrays == {}
    assert meta.complete_until_ms == 77
    assert meta.record_ms == []
    assert meta.positions["clicks/0"]["offset"] == 96


def test_followers_predict_what_the_trainer_predicts(tmp_path):
    with LearnedLog(config_in(tmp_path, RANDOM_CLICKS, NET_ALONE)) as run:
        run.learn(range(9), every=3)
        batch = make_batch(40)
        served = run.view().predict(batch.features)
        learned = torch.sigmoid(torch.from_numpy(run.state.learner.step(batch).logits_NL)).numpy()
    np.testing.assert_allclose(served, learned, atol=1e-6)  # the whole batch: exp is not the same on both sides


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"table": {"device_bytes": "1KiB"}}, r"\[table\] device_bytes"),
        pytest.param(
            {"train": {"device": "cuda"}},
            "needs an NVIDIA GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
    ids=["a table without room", "a missing GPU"],
)
def test_what_this_machine_cannot_do_is_a_usage_error(tmp_path, changes, match):
    with pytest.raises(UserError, match=match):
        LearnedLog(config_in(tmp_path, RANDOM_CLICKS, changes))
    assert not (tmp_path / "spill").exists()


def test_the_host_tier_is_reported_beside_the_others(tmp_path):
    with LearnedLog(config_in(tmp_path, RANDOM_CLICKS, TIGHT, {"table": {"host_bytes": "16KiB"}})) as run:
        run.learn(range(9), every=3)
        table = run.state.learner.table
        rows, sizes = table.rows_by_tier(), table.bytes_by_tier()
        assert min(rows.values()) > 0
        assert rows.keys() == {"device", "host", "disk"}
        assert sizes.keys() == {"device", "host", "disk", "spill_memory"}
        assert sizes["host"] <= 16 << 10
        assert table.counters()["hits_host"] > 0


def test_a_changed_limit_that_no_longer_fits_the_configuration_is_named(tmp_path):
    with LearnedLog(config_in(tmp_path, RANDOM_CLICKS)) as run:
        run.state.change_limits({(None, "lr"): 0.9})
        run.learn(range(3), every=3)
    optimizer = {"name": "rowwise-adagrad", "lr": 0.05, "weight_decay": 2.0}
    with pytest.raises(UserError, match=r"lr was changed at run time .* weight_decay"):
        LearnedLog(config_in(tmp_path, RANDOM_CLICKS, {"table": {"optimizer": optimizer}}))


def test_at_most_64_times_are_kept_with_the_oldest_and_the_newest():
    assert sample_times([]) == []
    assert sample_times([np.array([3, 1, 2])]) == [1, 2, 3]
    picked = sample_times([np.arange(1000), np.array([5000])])
    assert (len(picked), picked[0], picked[-1]) == (64, 0, 5000)
