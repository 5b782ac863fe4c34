"""Learners of ranks that are threads, their batches, and the rows that they have learned."""

import dataclasses
import threading
from typing import Any

import numpy as np

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.device import TrainDevice
from springtide.app.training.step.learner import Learner
from springtide.embeddings.collection import AnyTable, open_tables
from springtide.embeddings.config import TableConfig
from springtide.embeddings.policy.admission import AdmissionControl
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide.stream.columns import Batch
from springtide_client.features import Features, Ragged
from springtide_client.schema import Schema
from tests.app.training.random_clicks import SCHEMA, make_batch

BUILDING = threading.Lock()  # torch has one generator for all threads
TABLE = TableConfig(dim=4, device_bytes=8 << 20)
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
    schema: Schema = SCHEMA,
    **train: Any,
) -> Learner:
    with BUILDING:
        net = build_model(ModelConfig(name="dlrm"), ModelSpec.of(schema, TABLE.dim, table.dims), seed=0)
    own = open_table(table, backend("cpu" if device is None else device.table))
    return Learner(net, own, TrainConfig(**train), schema, device=device, exchange=exchange, precision=precision)


def parts_of(step: int, schema: Schema = SCHEMA) -> list[Batch]:
    lengths = np.roll(LENGTHS, step)
    return [make_batch(10 * step + number, int(length), schema) for number, length in enumerate(lengths)]


def union_of(parts: list[Batch]) -> Batch:
    features = [part.features for part in parts]
    together = Features(
        np.concatenate([one.categorical_NC for one in features]),
        tuple(Ragged.concatenate([one.lists[number] for one in features]) for number in range(len(SCHEMA.lists))),
        np.concatenate([one.dense_NF for one in features]),
        None if features[0].bias_NB is None else np.concatenate([one.bias_NB for one in features]),
    )
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels_NL", "weights_N", "event_ms_N", "record_ms_N")
    }
    return dataclasses.replace(parts[0], features=together, **columns)


def batch_of(step: int, rank: int, num_ranks: int, schema: Schema = SCHEMA) -> Batch:
    """The part of a rank: every `num_ranks`-th in a row."""
    parts = parts_of(step, schema)
    bounds = np.linspace(0, len(parts), num_ranks + 1).round().astype(int)
    return union_of(parts[bounds[rank] : bounds[rank + 1]])


def rows_of(learner: Learner) -> dict[tuple[int, int], tuple[Any, ...]]:
    rows: dict[tuple[int, int], tuple[Any, ...]] = {}
    for table in learner.table.tables.values():
        block = table.take_delta().rows
        columns = block.feature, block.id, *block.contents
        rows |= {(int(f), int(i)): tuple(rest) for f, i, *rest in zip(*columns, strict=True)}
    return rows


def learn(learner: Learner, rank: int, num_ranks: int, steps: int = 6, lookahead: bool = True) -> list[Any]:
    reports = []
    batches = [batch_of(step, rank, num_ranks, learner.schema) for step in range(steps)]
    for step, batch in enumerate(batches):
        following = batches[step + 1] if lookahead and step + 1 < steps else None
        if step == 3 and rank == 0:
            following = None
        reports.append(learner.step(batch, following))
    return reports


def loss_of(reports: list[Any]) -> float:
    return float(np.mean([report.loss for report in reports]))
