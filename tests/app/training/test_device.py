"""A learner on a device with late reports learns what it learns on the host, with and without CUDA graphs."""

import logging
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from msgspec import structs

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.device import (
    ALIGNMENT,
    MIN_BUFFER_BYTES,
    PinnedBuffers,
    StagedColumns,
    TrainDevice,
    column_layout,
    read_columns,
    resolve_device,
    write_columns,
)
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.step.cuda_graphs import MAX_GRAPHS, CudaGraphStep, padded_length
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.learning_step import StepColumns
from springtide.embeddings.config import FeaturePolicy
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.cuda.ops import CudaOps
from springtide_client.model.inputs import ModelInputs
from tests.app.training.device_learners import (
    BATCH_SIZE,
    BATCHES,
    BROKEN,
    TABLE,
    assert_same,
    learned,
    learner_on,
    state_arrays,
)
from tests.app.training.random_clicks import RANDOM_CLICKS, SCHEMA, make_batch
from tests.support.config import NET_ALONE, config_in
from tests.support.gpu_emulation.emulated_ops import device_of as device_of_tests
from tests.support.gpu_emulation.transfer_stream import (
    EmulatedTransferStream,
    Event,
    emulated_device,
    replay_without_graph,
)
from tests.support.learned_log import LearnedLog


@pytest.mark.parametrize("run_inline", [True, False])
@pytest.mark.parametrize(("name", "optimizer"), [("dlrm", "adam"), ("deepfm", "sgd")])
@pytest.mark.parametrize("batches", [BATCHES, BROKEN], ids=["finite", "overflow"])
def test_a_device_with_late_reports_learns_what_the_host_learns(batches, name, optimizer, run_inline) -> None:
    host, late = (
        learner_on(place, name=name, optimizer=optimizer) for place in (None, emulated_device(run_inline=run_inline))
    )
    # by torch: where a sample's numbers lie in memory may decide which code computes it
    for mine, other in zip(learned(late, batches), learned(host, batches), strict=True):
        np.testing.assert_allclose(mine.logits_NL, other.logits_NL, rtol=1e-4, atol=1e-5)
        assert mine.loss == pytest.approx(other.loss, rel=1e-4, nan_ok=True)
    assert late.skipped_steps == host.skipped_steps == (1 if batches is BROKEN else 0)
    assert_same(late, host, rtol=1e-4, atol=1e-5)
    transfer = late.device.transfer
    assert isinstance(transfer, EmulatedTransferStream)
    assert transfer.num_copies == sum(len(batch) > 0 for batch in batches)


def test_a_step_reads_its_labels_for_the_report_before_it_gives_their_buffer_back(monkeypatch) -> None:
    learner, order = learner_on(emulated_device()), []
    transfer = learner.device.transfer
    release, fetch_async = StagedColumns.release, transfer.fetch_async

    def released(staged) -> None:
        if staged._buffer is not None:
            order.append("released")
        release(staged)

    def fetched(numbers):
        order.append("read")
        return fetch_async(numbers)

    monkeypatch.setattr(StagedColumns, "release", released)
    monkeypatch.setattr(transfer, "fetch_async", fetched)
    learned(learner, BATCHES[:3])
    assert order == ["read", "released"] * 3


@pytest.mark.parametrize("weighted", [(), ("genres",)], ids=["plain", "weighted"])
def test_rows_on_the_device_take_their_keys_from_the_same_copy(weighted: tuple[str, ...]) -> None:
    """The table's kernels run as host C++: what they wait for is counted."""
    emulated = CudaOps(device_of_tests("host"), late=True)
    place = emulated_device(captures=True)._replace(table=emulated)
    schema = replace(SCHEMA, weighted=weighted)
    batches = [make_batch(number, len(batch), schema) for number, batch in enumerate(BATCHES)]
    host, there = learner_on(None, schema=schema), learner_on(place, schema=schema)
    for mine, other in zip(learned(there, batches), learned(host, batches), strict=True):
        np.testing.assert_allclose(mine.logits_NL, other.logits_NL, rtol=1e-4, atol=1e-5)
    assert_same(there, host, rtol=1e-4, atol=1e-5)
    assert place.transfer.num_copies == sum(len(batch) > 0 for batch in BATCHES)


class WatchfulTransferStream(EmulatedTransferStream):
    """Side work must not run before rows were evicted: `watched` changes when some are."""

    def __init__(self) -> None:
        super().__init__(run_inline=False)
        self.watched = lambda: 0

    def record_event(self) -> Event:
        mark = super().record_event()
        mark.watched = self.watched()
        return mark

    @contextmanager
    def side_stream(self, mark):
        assert mark.watched == self.watched(), "rows left after the mark: lookahead could still find them"
        with super().side_stream(mark):
            yield


def test_a_prefetch_waits_for_rows_that_the_update_evicted() -> None:
    emulated, transfer = CudaOps(device_of_tests("host"), late=True), WatchfulTransferStream()
    place = TrainDevice(torch.device("cpu"), transfer, None, emulated)
    # fewer rows than a batch brings: some leave with each update
    policies = {feature: FeaturePolicy(quota_bytes=4 * 200) for feature in range(3)}
    settings = with_adagrad_eps(structs.replace(TABLE, features=policies, device_bytes="128KiB"))
    table = EmbeddingTable(settings, seed=0, tracked=False, device=emulated)
    transfer.watched = lambda: table.num_removals
    net = build_model(ModelConfig(name="dlrm"), ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
    learner = Learner(net, table, TrainConfig(batch_size=BATCH_SIZE), SCHEMA, device=place)
    learned(learner, BATCHES[:3])
    assert table.counters()["evicted_quota"] > 0
    assert transfer.num_side_streams > 1


def test_a_log_can_continue_on_a_device_and_back_on_the_host(tmp_path, monkeypatch) -> None:
    states, evicted = {}, 0
    for name, places in {"host": [None, None, None], "both": [None, True, None]}.items():
        config = config_in(
            tmp_path / name, RANDOM_CLICKS, NET_ALONE, {"table": {"device_bytes": "48KiB"}}
        )  # rows leave memory, and come back from below
        for turn, there in enumerate(places):
            emulated = CudaOps(device_of_tests("host"), late=True)
            place = emulated_device(captures=True)._replace(table=emulated) if there else TrainDevice()
            monkeypatch.setattr("springtide.app.training.bootstrap.resolve_device", lambda _, place=place: place)
            with LearnedLog(config) as made:
                state, table = made.state, made.state.learner.table
                for number in range(3 * turn, 3 * turn + 3):
                    state.learn(make_batch(number), next_batch=make_batch(number + 1))
                made.checkpoint()
                features = np.repeat(np.arange(3, dtype=np.uint16), 2000)
                rows, status = table.find(features, np.tile(np.arange(2000), 3))
                states[name] = state.base_arrays() | {"rows": rows, "status": status}
                evicted += table.counters()["evicted"] if there else 0
    assert evicted > 0
    for name, array in states["host"].items():
        np.testing.assert_allclose(states["both"][name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    assert (states["host"]["status"] == 0).sum() > 300


@pytest.mark.parametrize("batches", [BATCHES, BROKEN], ids=["finite", "overflow"])
def test_cuda_graphs_do_not_change_what_is_learned(batches) -> None:
    host, graphed = learner_on(None), learner_on(emulated_device(captures=True))
    for mine, other in zip(learned(graphed, batches), learned(host, batches), strict=True):
        np.testing.assert_allclose(mine.logits_NL, other.logits_NL, rtol=1e-4, atol=1e-5)
    assert_same(graphed, host, rtol=1e-4, atol=1e-5)
    step = graphed.learning_step
    assert isinstance(step, CudaGraphStep)
    assert step.num_replays == sum(len(batch) == BATCH_SIZE for batch in batches)  # the odd ones ran without


def test_every_shape_has_its_graph_up_to_a_limit() -> None:
    captured = []

    def capture(work, warmup_runs):
        captured.append(warmup_runs)
        return replay_without_graph(work, warmup_runs)

    graphed = learner_on(TrainDevice(torch.device("cpu"), EmulatedTransferStream(run_inline=True), capture))
    learned(graphed, [make_batch(number) for number in range(4)])
    assert len(captured) == 1  # sequences of up to 3 are padded to 4
    step = graphed.learning_step
    assert isinstance(step, CudaGraphStep)
    spec = ModelSpec.of(SCHEMA, TABLE.dim)
    for longest in range(1, 200, 3):
        inputs = [
            torch.zeros(BATCH_SIZE, spec.num_categorical, 4),
            torch.zeros(BATCH_SIZE, spec.num_pooled, 4),
            torch.zeros(BATCH_SIZE, spec.num_sequence, longest, 4),
            torch.zeros(BATCH_SIZE, spec.num_sequence, dtype=torch.int64),
            torch.zeros(BATCH_SIZE, spec.num_dense),
        ]
        rows = ModelInputs(*[x.requires_grad_(n < 3) for n, x in enumerate(inputs)])
        columns = StepColumns(rows, torch.zeros(BATCH_SIZE, 1), torch.ones(BATCH_SIZE))
        step(graphed.objective, columns, bfloat16=False)
    assert len(captured) == MAX_GRAPHS
    assert [padded_length(longest) for longest in (1, 2, 3, 4, 5, 64)] == [1, 2, 4, 4, 8, 64]


def test_a_step_that_cannot_be_captured_runs_without_a_graph_and_logs_it_once(caplog) -> None:
    def capture(work, warmup_runs):
        work()
        raise RuntimeError("operation not permitted when stream is capturing")

    host, graphed = (
        learner_on(None),
        learner_on(TrainDevice(torch.device("cpu"), EmulatedTransferStream(run_inline=True), capture)),
    )
    with caplog.at_level(logging.WARNING):
        learned(graphed, BATCHES)
    learned(host, BATCHES)
    assert len(caplog.records) == 1
    assert_same(graphed, host, rtol=1e-6, atol=1e-7)


def test_after_a_restore_steps_are_captured_again() -> None:
    host, graphed = learner_on(None), learner_on(emulated_device(captures=True))
    for learner in (host, graphed):
        learned(learner, BATCHES[:3])
        learner.restore(learner.dense_arrays(), state_arrays(learner))
        learned(learner, BATCHES[4:])
    assert_same(graphed, host, rtol=1e-4, atol=1e-5)


def test_a_late_report_is_counted_at_the_next_step_or_when_scores_are_read() -> None:
    states = []
    for place in (None, emulated_device()):
        learner = learner_on(place)
        states.append(TrainingState(learner, ProgressiveScores(SCHEMA.labels, 1000), SCHEMA))
    host, late = states
    transfer = late.learner.device.transfer
    assert isinstance(transfer, EmulatedTransferStream)
    for batch in BATCHES[:4]:
        late.learn(batch)
    assert transfer.fetches == ["submitted", "submitted", "awaited", "submitted", "awaited", "submitted", "awaited"]
    for batch in BATCHES[:4]:
        host.learn(batch)
    assert late.loss == pytest.approx(host.loss, rel=1e-4)
    assert transfer.fetches[-1] == "awaited"
    mine, other = (state.scores.document() for state in (late, host))
    assert mine["whole"] == pytest.approx(other["whole"], rel=1e-3)
    for state, scores in ((late, mine), (host, other)):
        assert state.checkpoint(created_ms=1, complete_until_ms=1)[0].scores == scores


def test_a_missing_device_is_reported_with_the_remedy() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match='take device = "cpu"'):
        resolve_device(TrainConfig(device="cuda"))
    with pytest.raises(ValueError, match='cuda_graphs = true needs device = "cuda"'):
        TrainConfig(cuda_graphs=True)


@pytest.mark.gpu
@pytest.mark.parametrize("capture", [False, True])
def test_on_a_gpu_the_net_learns_what_the_host_learns(capture: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no NVIDIA GPU")
    host, there = learner_on(None), learner_on(resolve_device(TrainConfig(device="cuda", cuda_graphs=capture)))
    for mine, other in zip(learned(there, BROKEN), learned(host, BROKEN), strict=True):
        np.testing.assert_allclose(mine.logits_NL, other.logits_NL, rtol=1e-3, atol=1e-3)
    assert there.skipped_steps == host.skipped_steps
    assert_same(there, host, rtol=1e-2, atol=1e-3)


DTYPES = st.sampled_from([np.float32, np.int64, np.uint16, np.uint8])
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=1, max_dims=3, min_side=0)))


@given(st.dictionaries(st.text(max_size=3), ARRAYS, max_size=5))
def test_columns_do_not_overlap_in_a_buffer_and_are_read_back(columns) -> None:
    places, num_bytes = column_layout(columns)
    block = torch.full((num_bytes,), 0xAB, dtype=torch.uint8)
    write_columns(columns, places, block)
    ends = 0
    for place in places.values():
        assert place.start % ALIGNMENT == 0
        assert ends <= place.start
        ends = place.stop
    assert ends <= num_bytes
    for name, tensor in read_columns(places, block).items():
        assert tensor.numpy().tobytes() == columns[name].tobytes()
        assert tensor.numpy().dtype == columns[name].dtype
        assert tuple(tensor.shape) == columns[name].shape


def columns_of(number: int, num: int = 50) -> dict[str, np.ndarray]:
    random = np.random.default_rng(number)
    return {"ids": random.integers(0, 2**60, num), "numbers": random.standard_normal((num, 3)).astype(np.float32)}


@pytest.mark.parametrize("run_inline", [True, False])
def test_a_batch_is_read_while_the_next_one_is_copied(run_inline: bool) -> None:
    transfer = EmulatedTransferStream(run_inline=run_inline)
    buffers = PinnedBuffers(transfer)
    current = buffers.stage(columns_of(0))
    for number in range(1, 9):
        next_batch = buffers.stage(columns_of(number))
        for name, tensor in current.tensors().items():
            np.testing.assert_array_equal(tensor.numpy(), columns_of(number - 1)[name])
        current.release()
        current = next_batch
    assert transfer.num_copies == 9
    assert transfer.num_allocated == 4  # two blocks, an end each


def test_buffers_grow_with_the_batches() -> None:
    transfer = EmulatedTransferStream(run_inline=False)
    buffers = PinnedBuffers(transfer)
    for num in (1, MIN_BUFFER_BYTES, 3 * MIN_BUFFER_BYTES, 2):
        staged = buffers.stage(columns_of(num, num))
        np.testing.assert_array_equal(staged.tensors()["ids"].numpy(), columns_of(num, num)["ids"])
        staged.release()
        staged.release()
    assert transfer.num_allocated == 2 * 3  # the last one fits where the one before it was


def test_a_third_batch_without_a_release_is_an_error() -> None:
    buffers = PinnedBuffers(EmulatedTransferStream(run_inline=False))
    held = [buffers.stage(columns_of(number)) for number in range(2)]
    with pytest.raises(RuntimeError, match="release one"):
        buffers.stage(columns_of(2))
    held[0].release()
    buffers.stage(columns_of(2))


@pytest.mark.gpu
def test_on_a_gpu_columns_are_copied_beside_the_work() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no NVIDIA GPU")
    from springtide.app.training.device import CudaTransferStream

    transfer = CudaTransferStream()
    buffers = PinnedBuffers(transfer)
    current, seen = buffers.stage(columns_of(0, 5000)), []
    for number in range(1, 9):
        next_batch = buffers.stage(columns_of(number, 5000))
        torch.cuda._sleep(10_000_000)
        seen.append({name: tensor.clone() for name, tensor in current.tensors().items()})
        current.release()
        current = next_batch
    for number, tensors in enumerate(seen):
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor.cpu().numpy(), columns_of(number, 5000)[name])
    arrives = transfer.fetch_async(torch.arange(5.0, device="cuda"))
    assert arrives().tolist() == [0, 1, 2, 3, 4]
