"""Several ranks learn what one process learns from all their batches."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.training.config import TrainConfig
from springtide.app.training.device import resolve_device
from springtide.app.training.step.learner import Learner
from springtide.embeddings.config import FeatureTable
from springtide.embeddings.errors import ShardError
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.row_format import Precision
from springtide.kernels.cuda.ops import CudaOps
from tests.app.training.random_clicks import SCHEMA
from tests.app.training.step.rank_learners import (
    BUILDING,
    TABLE,
    batch_of,
    learn,
    loss_of,
    make_learner,
    open_table,
    parts_of,
    rows_of,
    union_of,
)
from tests.embeddings.backends import ops_of
from tests.support.gpu_emulation.emulated_ops import device_of
from tests.support.gpu_emulation.transfer_stream import emulated_device
from tests.support.one_rank import one_rank
from tests.support.thread_ranks import on_ranks

MAIN, NARROW = FeatureTable(dim=4, features=(0, 2)), FeatureTable(dim=2, features=(1,))
OTHERS, LISTS = FeatureTable(dim=4, features=(0, 1)), FeatureTable(dim=2, features=(2,))
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped, with a schedule": {"clip_norm": 0.01, "lr_schedule": {"warmup_samples": 100, "rows": True}},
    "gathered": {"accumulate_batches": 2, "ema_half_life_samples": 50},
    "admission": {"table": replace(TABLE, admission={"min_count": 4, "sketch_bytes": 64 * 64})},
    "two widths": {"table": replace(TABLE, tables={"": MAIN, "narrow": NARROW})},
    "weighted mean": {"schema": dataclasses.replace(SCHEMA, weighted=("genres",))},
    "weighted sum": {"schema": dataclasses.replace(SCHEMA, weighted=("genres",), pooling={"genres": "sum"})},
    "two widths, weighted": {
        "table": replace(TABLE, tables={"": OTHERS, "narrow": LISTS}),
        "schema": dataclasses.replace(SCHEMA, weighted=("genres",)),
    },
}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("train", SETTINGS.values(), ids=SETTINGS)
def test_ranks_learn_what_one_process_learns(num_ranks: int, train: dict[str, Any]) -> None:
    alone = make_learner(**train)
    expected = [alone.step(union_of(parts_of(step, alone.schema))) for step in range(6)]

    def work(exchange: Exchange) -> Any:
        learner = make_learner(exchange, **train)
        reports = learn(learner, exchange.rank, num_ranks)
        learner.require_same_net()
        return learner, reports, rows_of(learner), learner.table.admission.take_delta()

    results = on_ranks(num_ranks, work)
    known = rows_of(alone)
    rows: dict[tuple[int, int], tuple[Any, ...]] = {}
    clocks = [table.clock_state() for table in alone.table.tables.values()]
    for learner, reports, own, _ in results:
        assert [table.clock_state() for table in learner.table.tables.values()] == clocks
        assert not rows.keys() & own.keys(), "two ranks have a row of this id"
        rows |= own
        assert (learner.steps, learner.num_samples) == (alone.steps, alone.num_samples)
        for report, one in zip(reports, expected, strict=True):
            np.testing.assert_array_equal(report.labels_NL, one.labels_NL)
            np.testing.assert_array_equal(report.weights_N, one.weights_N)
            np.testing.assert_allclose(report.logits_NL, one.logits_NL, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(report.loss, one.loss, rtol=1e-4)
            if "accumulate_batches" not in train:  # whose gradients stay on their ranks for a while
                np.testing.assert_allclose(report.gradient_norm, one.gradient_norm, rtol=1e-4)
            assert report.clipped == one.clipped
        for name, array in alone.dense_arrays().items():
            np.testing.assert_allclose(learner.dense_arrays()[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
            np.testing.assert_array_equal(learner.dense_arrays()[name], results[0][0].dense_arrays()[name])
    blocks, sketch = (np.concatenate(parts) for parts in zip(*(result[3] for result in results), strict=True))
    if num_ranks != 3:  # whose borders are within blocks
        known_blocks, known_sketch = alone.table.admission.take_delta()
        np.testing.assert_array_equal(blocks, known_blocks)
        np.testing.assert_array_equal(sketch, known_sketch)
    assert rows.keys() == known.keys()
    for key, (values, states, count, last_seen) in known.items():
        assert rows[key][2:] == (count, last_seen)
        np.testing.assert_allclose(rows[key][0], values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rows[key][1], states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gathered_gradients_travel_once_and_at_a_version_from_which_a_restart_goes_on(dtype: str) -> None:
    def run(exchange: Exchange, restored_at: int | None, accumulate: int = 4) -> tuple[Any, int]:
        learner = make_learner(
            exchange, Precision(dense=dtype), accumulate_batches=accumulate, optimizer={"name": "adam", "lr": 0.01}
        )
        exchange.bytes_sent.clear()
        for step in range(8):
            learner.step(batch_of(step, exchange.rank, 2))
            if step == 5 and restored_at != -1:  # inside a group
                learner.merge_gathered()
                learner.require_same_net()
                if restored_at == step:
                    state = {name: one.clone().numpy() for name, one in learner.state_tensors().items()}
                    assert state["accumulated.num_gathered"] == 2
                    learner.restore(learner.dense_arrays(), state)
        learner.require_same_net()
        return learner.dense_arrays(), exchange.bytes_sent["dense"]

    def work(exchange: Exchange) -> Any:
        return [run(exchange, None), run(exchange, 5), run(exchange, -1), run(exchange, -1, 1)]

    for (cut, sent), (restored, _), (whole, sent_by_groups), (_, sent_each) in on_ranks(2, work):
        for name, array in cut.items():
            np.testing.assert_array_equal(array, whole[name], err_msg=name)  # a version changes nothing
            np.testing.assert_allclose(array, restored[name], rtol=1e-4, atol=1e-3 if dtype == "bfloat16" else 1e-5)
        small = 8 * 3 * 4  # loss, weight and norm of each step
        assert sent_by_groups - small < sent_each / 4 + 8 < sent


def test_a_version_has_the_gradients_that_all_ranks_have_gathered_and_each_goes_on_from_its_own() -> None:
    def gathered_by(learner: Learner) -> list[Any]:
        return [one.clone().numpy() for name, one in learner.state_tensors().items() if ".gradient." in name]

    def work(exchange: Exchange) -> Any:
        learner = make_learner(exchange, Precision(dense="bfloat16"), accumulate_batches=3)
        learner.step(batch_of(0, exchange.rank, 2))
        own, norm = gathered_by(learner), learner.gradient_norm * float(learner.update.gathered.weight)
        learner.merge_gathered()
        of_all, dense = gathered_by(learner), learner.dense_arrays()
        state = {name: one.clone().numpy() for name, one in learner.state_tensors().items()}
        learner.step(batch_of(1, exchange.rank, 2))
        later = gathered_by(learner)
        learner.restore(dense, state)
        learner.merge_gathered()  # a version before the first batch after a restart
        return list(zip(own, of_all, later, gathered_by(learner), strict=True)), norm

    (here, norm), (there, _) = on_ranks(2, work)
    assert norm == pytest.approx(float(np.sqrt(sum((own**2).sum() for own, *_ in (*here, *there)))))
    for (first, of_all, later, restored), (second, of_all_there, _, _) in zip(here, there, strict=True):
        np.testing.assert_allclose(of_all, first + second, rtol=1e-5, atol=1e-8)  # versions have them in float32
        np.testing.assert_array_equal(of_all, of_all_there)
        np.testing.assert_array_equal(of_all, restored)
        assert not np.array_equal(of_all, later)


@pytest.mark.parametrize("rows_on_device", [False, True])
@pytest.mark.parametrize("settings", ["clipped, with a schedule", "gathered", "two widths"])
def test_ranks_learn_the_same_on_devices_that_report_late(settings: str, rows_on_device: bool) -> None:
    """The table's kernels run as host C++; a rank has no samples in some steps."""
    train = SETTINGS[settings]
    num_steps = 3
    alone = make_learner(**train)
    expected = [alone.step(union_of(parts_of(step)[:2])) for step in range(num_steps)]

    def work(exchange: Exchange) -> Any:
        place = emulated_device()
        if rows_on_device:
            place = place._replace(table=CudaOps(device_of("host", exchange.rank), late=True))
        learner, rank = make_learner(exchange, device=place, **train), exchange.rank
        batches, late = [parts_of(step)[rank] for step in range(num_steps)], []
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            late.append(learner.start_step(batch, following))
        learner.merge_gathered()
        learner.require_same_net()
        return [report() for report in late], learner.dense_arrays(), rows_of(learner)

    results, known = on_ranks(2, work), rows_of(alone)
    rows = results[0][2] | results[1][2]
    for rank, (reports, arrays, _) in enumerate(results):
        for step, (report, one) in enumerate(zip(reports, expected, strict=True)):
            assert report.num_scored_before == (len(parts_of(step)[0]) if rank else 0)
            np.testing.assert_array_equal(report.labels_NL, one.labels_NL)
            np.testing.assert_array_equal(report.weights_N, one.weights_N)
            np.testing.assert_allclose(report.logits_NL, one.logits_NL, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(report.loss, one.loss, rtol=1e-4)
        for name, array in alone.dense_arrays().items():
            np.testing.assert_allclose(arrays[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    assert rows.keys() == known.keys()
    for key, (values, states, count, last_seen) in known.items():
        assert rows[key][2:] == (count, last_seen)
        np.testing.assert_allclose(rows[key][0], values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rows[key][1], states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [(), ("genres",)], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", ["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_device_that_exchanges_with_itself_learns_what_the_host_learns(
    name: str, weighted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = dataclasses.replace(SCHEMA, weighted=weighted)
    ops = ops_of(name)
    place = resolve_device(TrainConfig(device="cuda")) if name == "gpu" else emulated_device()._replace(table=ops)
    batches = [union_of(parts_of(step, schema)) for step in range(3)]
    alone = make_learner(bfloat16=False, schema=schema)
    expected = [alone.step(batch) for batch in batches]
    if name == "emulated":  # its tensors are taken for those of a device
        monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    with one_rank("cuda" if name == "gpu" else "cpu") as exchange:
        learner = make_learner(exchange, device=place, bfloat16=False, schema=schema)
        pairs = zip(batches, [*batches[1:], None], strict=True)
        late = [learner.start_step(batch, following) for batch, following in pairs]
        reports = [report() for report in late]
        learner.require_same_net()
        assert set(exchange.bytes_sent) >= {"keys", "rows", "gradients", "samples", "dense"}
    for report, one in zip(reports, expected, strict=True):
        np.testing.assert_array_equal(report.labels_NL, one.labels_NL)
        np.testing.assert_allclose(report.logits_NL, one.logits_NL, rtol=1e-3, atol=1e-3)
    for label, array in alone.dense_arrays().items():
        np.testing.assert_allclose(learner.dense_arrays()[label], array, rtol=1e-2, atol=1e-3, err_msg=label)
    known, rows = rows_of(alone), rows_of(learner)
    assert {key: row[2:] for key, row in rows.items()} == {key: row[2:] for key, row in known.items()}
    for key, (values, *_) in known.items():
        np.testing.assert_allclose(rows[key][0], values, rtol=1e-2, atol=1e-3)


def test_a_step_that_exchanges_is_not_captured() -> None:
    def work(exchange: Exchange) -> None:
        with pytest.raises(ValueError, match=r"not part of a CUDA graph: set \[train\] cuda_graphs = false"):
            make_learner(exchange, device=emulated_device(captures=True))

    on_ranks(2, work)


def test_all_ranks_know_that_the_spill_of_one_has_no_room() -> None:
    def work(exchange: Exchange) -> tuple[bool, bool]:
        learner = make_learner(exchange)
        batch, own = batch_of(0, exchange.rank, 2), learner.table.tables[""]
        counts = learner.count_keys(batch)
        assert not counts.need_checkpoint
        had_room = learner.has_room(counts)
        if exchange.rank:
            own.has_room = lambda *_: False  # type: ignore[method-assign, assignment]
        return had_room, learner.has_room(counts)

    assert on_ranks(2, work) == [(True, False)] * 2


def test_any_other_error_of_one_rank_ends_the_step_on_all() -> None:
    def work(exchange: Exchange) -> str:
        learner = make_learner(exchange)
        if exchange.rank:
            learner.table.tables[""].lookup_unique = break_down  # type: ignore[method-assign]
        with pytest.raises((OSError, ShardError)) as raised:
            learner.step(batch_of(0, exchange.rank, 2))
        return str(raised.value)

    assert on_ranks(2, work) == ["another rank failed in this call: see its error", "broken"]


def break_down(*_: Any, **__: Any) -> Any:
    raise OSError("broken")


def test_ranks_whose_nets_differ_are_named() -> None:
    def work(exchange: Exchange) -> None:
        learner = make_learner(exchange)
        if exchange.rank:
            next(learner.model.parameters()).data[0] += 1e-3
        with pytest.raises(ShardError, match="the dense net of rank 1 differs from that of rank 0: start all ranks"):
            learner.require_same_net()

    on_ranks(2, work)


def test_narrow_numbers_are_narrow_on_the_wire_and_learn_nearly_the_same() -> None:
    def work(exchange: Exchange) -> Any:
        sent, losses, dim = {}, {}, TABLE.dim
        for name, width in (("float32", 4 * dim), ("bfloat16", 2 * dim), ("int8", dim + 4)):
            exchange.bytes_sent.clear()
            dense = "float32" if name == "float32" else "bfloat16"
            learner = make_learner(exchange, Precision(rows=name, gradients=name, dense=dense))
            losses[name] = loss_of(learn(learner, exchange.rank, 2, steps=12, lookahead=False))
            learner.require_same_net()
            sent[name] = dict(exchange.bytes_sent)
            num_keys = sent[name]["keys"] // 22
            assert sent[name]["keys"] == 22 * num_keys
            assert sent[name]["gradients"] == width * num_keys
        assert sent["int8"]["dense"] < 0.6 * sent["float32"]["dense"]
        return losses

    for losses in on_ranks(2, work):
        for name in ("bfloat16", "int8"):
            assert abs(losses[name] - losses["float32"]) < 0.01


def test_two_towers_on_ranks_count_the_items_of_all() -> None:
    def make(exchange: Exchange | None = None) -> Learner:
        options = {"item": ["item_id"], "hidden": [8], "dim": 4, "buckets": 256}
        with BUILDING:
            model = ModelConfig(name="two_tower", options=options)
            net = build_model(model, ModelSpec.of(SCHEMA, TABLE.dim), seed=0)
        return Learner(net, open_table(TABLE), TrainConfig(bfloat16=False), SCHEMA, exchange=exchange)

    def work(exchange: Exchange) -> Any:
        learner = make(exchange)
        reports = learn(learner, exchange.rank, 3)
        learner.require_same_net()
        return reports, learner.dense_arrays()

    alone = make()
    expected = [alone.step(union_of(parts_of(step))) for step in range(6)]
    reports, arrays = on_ranks(3, work)[0]
    assert abs(loss_of(reports) - loss_of(expected)) < 1.2  # fewer items to be told from
    for name, array in alone.dense_arrays().items():
        if "frequency" in name:
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)
