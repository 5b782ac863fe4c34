"""Several ranks learn what one process learns from all their batches."""

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from springtide_client.features import Features, Ragged
from springtide_client.schema import Schema

from app.models.config import ModelConfig
from app.models.interface import ModelSpec
from app.models.registry import build_model
from app.models.wide.wide_part import add_wide_part
from app.training.bootstrap import with_wide_rows
from app.training.config import TrainConfig, with_adagrad_eps
from app.training.device.device import TrainDevice, resolve_device
from app.training.step.learner import Learner
from embeddings.collection.collection import AnyTable, open_tables, tables_by_name
from embeddings.config import FeatureTable, TableConfig
from embeddings.errors import ShardError, SpillError
from embeddings.policy.admission import AdmissionControl
from embeddings.sharding.exchange import Exchange
from embeddings.sharding.precision import Precision
from embeddings.table import EmbeddingTable
from kernels.backend import backend
from kernels.cuda.ops import CudaOps
from kernels.ops import Ops
from stream.columns import Batch
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.embeddings.backends import ops_of
from tests.support.gpu_emulation.emulated_ops import device_of
from tests.support.gpu_emulation.transfer_stream import emulated_device
from tests.support.one_rank import one_rank
from tests.support.thread_ranks import on_ranks

BUILDING = threading.Lock()  # torch has one generator for all threads
TABLE = TableConfig(dim=4, device_bytes=8 << 20)
MAIN, NARROW = FeatureTable(dim=4, features=(0, 2)), FeatureTable(dim=2, features=(1,))
LENGTHS = (20, 0, 21, 12)  # of the ranks' batches, from step to step another rank's


def open_table(config: TableConfig, ops: Ops | None = None) -> AnyTable:
    ops = backend("cpu") if ops is None else ops  # of this rank alone: they keep scratch, for one thread at a time

    def make(name: str, own: TableConfig, admission: AdmissionControl | None) -> EmbeddingTable:
        return EmbeddingTable(with_adagrad_eps(own), seed=0, tracked=True, admission=admission, device=ops)

    return open_tables(config, ops, make)


def make_learner(
    exchange: Exchange | None = None,
    precision: Precision | None = None,
    table: TableConfig = TABLE,
    device: TrainDevice | None = None,
    **train: Any,
) -> Learner:
    with BUILDING:
        net = build_model(ModelConfig(name="dlrm"), ModelSpec.of(SCHEMA, TABLE.dim, table.dims), seed=0)
    own = open_table(table, backend("cpu" if device is None else device.table))
    return Learner(net, own, TrainConfig(**train), SCHEMA, device=device, exchange=exchange, precision=precision)


def parts_of(step: int) -> list[Batch]:
    lengths = np.roll(LENGTHS, step)
    return [make_batch(10 * step + number, int(length)) for number, length in enumerate(lengths)]


def union_of(parts: list[Batch]) -> Batch:
    def joined_list(ragged: list[Ragged]) -> Ragged:
        lengths = np.concatenate([np.diff(one.offsets) for one in ragged])
        return Ragged(np.concatenate([one.ids_M for one in ragged]), np.concatenate([[0], np.cumsum(lengths)]))

    features = [part.features for part in parts]
    together = Features(
        np.concatenate([one.categorical_NC for one in features]),
        tuple(joined_list([one.lists[number] for one in features]) for number in range(len(SCHEMA.lists))),
        np.concatenate([one.dense_NF for one in features]),
    )
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels_NL", "weights_N", "event_ms_N", "record_ms_N")
    }
    return dataclasses.replace(parts[0], features=together, **columns)


def batch_of(step: int, rank: int, num_ranks: int) -> Batch:
    """The part of a rank: every `num_ranks`-th in a row."""
    parts = parts_of(step)
    bounds = np.linspace(0, len(parts), num_ranks + 1).round().astype(int)
    return union_of(parts[bounds[rank] : bounds[rank + 1]])


def rows_of(learner: Learner) -> dict[tuple[int, int], tuple[Any, ...]]:
    rows: dict[tuple[int, int], tuple[Any, ...]] = {}
    for table in tables_by_name(learner.table).values():
        delta = table.take_delta()
        columns = delta.features, delta.ids, delta.values, delta.states, delta.counts, delta.last_seen
        rows |= {(int(f), int(i)): tuple(rest) for f, i, *rest in zip(*columns, strict=True)}
    return rows


def learn(learner: Learner, rank: int, num_ranks: int, steps: int = 6, lookahead: bool = True) -> list[Any]:
    reports = []
    batches = [batch_of(step, rank, num_ranks) for step in range(steps)]
    for step, batch in enumerate(batches):
        following = batches[step + 1] if lookahead and step + 1 < steps else None
        if step == 3 and rank == 0:
            following = None
        reports.append(learner.step(batch, following))
    return reports


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped, with a schedule": {"clip_norm": 0.01, "lr_schedule": {"warmup_samples": 100, "rows": True}},
    "gathered": {"accumulate_batches": 2, "ema_half_life_samples": 50},
    "admission": {"table": replace(TABLE, admission={"min_count": 4, "sketch_bytes": 64 * 64})},
    "two widths": {"table": replace(TABLE, tables={"": MAIN, "narrow": NARROW})},
}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("train", SETTINGS.values(), ids=SETTINGS)
def test_ranks_learn_what_one_process_learns(num_ranks: int, train: dict[str, Any]) -> None:
    alone = make_learner(**train)
    expected = [alone.step(union_of(parts_of(step))) for step in range(6)]

    def work(exchange: Exchange) -> Any:
        learner = make_learner(exchange, **train)
        reports = learn(learner, exchange.rank, num_ranks)
        learner.require_same_net()
        return learner, reports, rows_of(learner), learner.table.take_sketch_delta()

    results = on_ranks(num_ranks, work)
    known = rows_of(alone)
    rows: dict[tuple[int, int], tuple[Any, ...]] = {}
    clocks = [table.clock_state() for table in tables_by_name(alone.table).values()]
    for learner, reports, own, _ in results:
        assert [table.clock_state() for table in tables_by_name(learner.table).values()] == clocks
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
        known_blocks, known_sketch = alone.table.take_sketch_delta()
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
            assert report.num_before == (len(parts_of(step)[0]) if rank else 0)
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


@pytest.mark.parametrize("name", ["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_device_that_exchanges_with_itself_learns_what_the_host_learns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = ops_of(name)
    place = resolve_device(TrainConfig(device="cuda")) if name == "gpu" else emulated_device()._replace(table=ops)
    batches = [union_of(parts_of(step)) for step in range(3)]
    alone = make_learner(bfloat16=False)
    expected = [alone.step(batch) for batch in batches]
    if name == "emulated":  # its tensors are taken for those of a device
        monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    with one_rank("cuda" if name == "gpu" else "cpu") as exchange:
        learner = make_learner(exchange, device=place, bfloat16=False)
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


def make_wide_learner(
    exchange: Exchange | None = None, crosses: int = 64, schema: Schema = SCHEMA, model: str = "deepfm"
) -> Learner:
    table = open_table(with_wide_rows(TABLE, schema, crosses=crosses > 0))
    config = ModelConfig(name=model, wide=True, crosses=crosses)
    with BUILDING:
        net = build_model(config, ModelSpec.of(schema, TABLE.dim), seed=0)
    add_wide_part(net, config, schema)
    return Learner(net, table, TrainConfig(), schema, exchange=exchange)


def loss_of(reports: list[Any]) -> float:
    return float(np.mean([report.loss for report in reports]))


@pytest.mark.parametrize("crosses", [64, 3, 0])
def test_ranks_learn_the_wide_part_nearly_as_one_process(crosses: int) -> None:
    parts = [[make_batch(2 * step + rank, 200 if step % 5 else 200 * rank) for rank in range(2)] for step in range(12)]
    alone = make_wide_learner(crosses=crosses)
    expected = [alone.step(union_of(part)) for part in parts]

    def work(exchange: Exchange) -> Any:
        learner = make_wide_learner(exchange, crosses)
        batches = [part[exchange.rank] for part in parts]
        assert not learner.needs_checkpoint(batches[0])
        reports = [
            learner.step(batch, following) for batch, following in zip(batches, [*batches[1:], None], strict=True)
        ]
        learner.require_same_net()
        rows = {name: table.take_delta() for name, table in tables_by_name(learner.table).items()}
        return reports, learner.dense_arrays(), rows

    (reports, arrays, rows), (_, _, other_rows) = on_ranks(2, work)
    assert abs(loss_of(reports[4:]) - loss_of(expected[4:])) < 0.03
    known = alone.dense_arrays()
    for name in ("num_samples_1", "clicks_L", "samples_L", "seen_statistics_3F"):
        np.testing.assert_allclose(arrays[f"wide.{name}"], known[f"wide.{name}"], rtol=0.2, err_msg=name)
    np.testing.assert_allclose(arrays["wide.number_statistics_3D"], known["wide.number_statistics_3D"], rtol=1e-9)
    if crosses == 3:
        assert arrays["wide.pair_is_live_P"].sum() == 3
    for name, delta in rows.items():
        assert len(delta) > 10
        assert len(other_rows[name]) > 10
        keys = [{*zip(one.features, one.ids, strict=True)} for one in (delta, other_rows[name])]
        assert not keys[0] & keys[1], "two ranks have a row of this id"


def test_many_ranks_that_correct_the_same_error_do_not_overshoot() -> None:
    """Every id is in half of all samples: each rank alone corrects most of an error within a step."""
    schema = Schema(labels=("click",), categorical=tuple(f"field{number}" for number in range(12)))

    def clicks(seed: int) -> Batch:
        random = np.random.default_rng(seed)
        ids_NC = random.integers(0, 2, (1024, 12))
        logits_N = (ids_NC - 0.5) @ np.linspace(-1, 1, 12)
        labels_NL = (random.random((1024, 1)) < 1 / (1 + np.exp(-logits_N[:, None]))).astype(np.float32)
        features, ones_N = Features(ids_NC, (), np.zeros((1024, 0), np.float32)), np.ones(1024, np.float32)
        batch = make_batch(seed, 1024)
        return dataclasses.replace(
            batch, features=features, labels_NL=labels_NL, weights_N=ones_N, id_strings=[], dead_letters=()
        )

    def work(exchange: Exchange) -> list[float]:
        learner, losses = make_wide_learner(exchange, 0, schema, "logistic"), []
        assert learner.wide is not None
        for step in range(7):
            losses.append(learner.step(clicks(8 * step + exchange.rank)).loss)
            arrays = learner.wide.arrays
            arrays.loss_difference_L[:], arrays.mixture_L[:] = 100, 1  # the plain learner would hide it
        return losses

    losses = on_ranks(8, work)[0]
    assert max(losses[4:]) < 0.59


def test_a_spill_error_of_one_rank_lets_all_try_again() -> None:
    table = replace(TABLE, admission={"min_count": 4, "sketch_bytes": 64 * 64})
    alone = make_learner(table=table)
    for step in range(4):
        alone.step(union_of(parts_of(step)))

    def work(exchange: Exchange) -> Any:
        learner = make_learner(exchange, table=table)
        for step in range(4):
            batch = batch_of(step, exchange.rank, 2)
            if step == 2:
                own = tables_by_name(learner.table)[""]
                if exchange.rank:
                    own.lookup = fail  # type: ignore[method-assign]
                with pytest.raises(SpillError, match="no space" if exchange.rank else "the spill of another rank"):
                    learner.step(batch)
                vars(own).pop("lookup", None)
            learner.step(batch)
        return rows_of(learner), learner.table.take_sketch_delta()

    (first, sketch), (second, other_sketch) = on_ranks(2, work)
    known, rows = rows_of(alone), first | second
    assert {key: row[2:] for key, row in rows.items()} == {key: row[2:] for key, row in known.items()}
    np.testing.assert_array_equal(np.concatenate([sketch[1], other_sketch[1]]), alone.table.take_sketch_delta()[1])


def fail(*_: Any, **__: Any) -> Any:
    raise SpillError("no space left on device")


def test_any_other_error_of_one_rank_ends_the_step_on_all() -> None:
    def work(exchange: Exchange) -> str:
        learner = make_learner(exchange)
        if exchange.rank:
            tables_by_name(learner.table)[""].lookup = break_down  # type: ignore[method-assign]
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
