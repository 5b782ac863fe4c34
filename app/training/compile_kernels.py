"""Learns a few invented samples when Springtide is set up, so that the first real ones do not wait for the compiler.

Numba compiles for the types that a kernel is called with, and the surest way to call it as training does is to train.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.training.bootstrap import with_wide_rows
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.step.learner import Learner
from springtide.embeddings.collection import open_tables
from springtide.embeddings.config import TableConfig
from springtide.embeddings.policy.admission import AdmissionControl
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.stream.columns import Batch
from springtide_client.features import Features, Ragged
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("label",), categorical=("user", "item"), multi_value=("tags",), dense=("number",))
WEIGHTED = replace(SCHEMA, weighted=("tags",))
NUM_SAMPLES = 4


def compile_kernels(dims: Iterable[int]) -> None:
    """Learn with the default settings, in rows of each of these widths."""
    for dim in dims:
        # with one value in each list and with two: the wide part has a kernel for either
        learn(dim, SCHEMA, 1, 2)
        learn(dim, WEIGHTED, 2)


def learn(dim: int, schema: Schema, *num_tags: int) -> None:
    """Learn samples with so many values in each list."""
    settings = with_wide_rows(TableConfig(dim=dim, device_bytes=1 << 20), schema, crosses=True)

    def make(name: str, own: TableConfig, admission: AdmissionControl | None) -> EmbeddingTable:
        return EmbeddingTable(with_adagrad_eps(own), seed=0, admission=admission)

    table = open_tables(settings, backend("cpu"), make)
    config = ModelConfig(wide=True)
    model = build_model(config, ModelSpec.of(schema, dim), seed=0)
    add_wide_part(model, config, schema)
    learner = Learner(model, table, TrainConfig(), schema)
    for num in num_tags:
        learner.step(invented(num, has_weights="tags" in schema.weighted))
    table.close()


def invented(num_tags: int, *, has_weights: bool = False) -> Batch:
    """Return samples of which each has this many tags."""
    numbers_N = np.arange(NUM_SAMPLES)
    weights_M = np.ones(NUM_SAMPLES * num_tags, np.float32) if has_weights else None
    tags = Ragged(np.arange(NUM_SAMPLES * num_tags), np.arange(NUM_SAMPLES + 1) * num_tags, weights_M)
    return Batch(
        features=Features(np.stack([numbers_N, numbers_N], 1), (tags,), np.ones((NUM_SAMPLES, 1), np.float32)),
        labels_NL=(numbers_N % 2).astype(np.float32)[:, None],
        weights_N=np.ones(NUM_SAMPLES, np.float32),
        event_ms_N=numbers_N,
        record_ms_N=numbers_N,
        positions={},
    )
