"""Learns a few invented samples when Springtide is set up, so that the first real ones do not wait for the compiler.

Numba compiles for the types that a kernel is called with, and the surest way to call it as training does is to train.
"""

from collections.abc import Iterable

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
NUM_SAMPLES = 4


def compile_kernels(dims: Iterable[int]) -> None:
    """Learn with the default settings, in rows of each of these widths."""
    for dim in dims:
        learn(dim)


def learn(dim: int) -> None:
    """Learn samples with one value in each list, and samples with two: the wide part has a kernel for either."""
    settings = with_wide_rows(TableConfig(dim=dim, device_bytes=1 << 20), SCHEMA, crosses=True)

    def make(name: str, own: TableConfig, admission: AdmissionControl | None) -> EmbeddingTable:
        return EmbeddingTable(with_adagrad_eps(own), seed=0, admission=admission)

    table = open_tables(settings, backend("cpu"), make)
    config = ModelConfig(wide=True)
    model = build_model(config, ModelSpec.of(SCHEMA, dim), seed=0)
    add_wide_part(model, config, SCHEMA)
    learner = Learner(model, table, TrainConfig(), SCHEMA)
    learner.step(invented(num_tags=1))
    learner.step(invented(num_tags=2))
    table.close()


def invented(num_tags: int) -> Batch:
    """Return samples of which each has this many tags."""
    numbers_N = np.arange(NUM_SAMPLES)
    tags = Ragged(np.arange(NUM_SAMPLES * num_tags), np.arange(NUM_SAMPLES + 1) * num_tags)
    return Batch(
        features=Features(np.stack([numbers_N, numbers_N], 1), (tags,), np.ones((NUM_SAMPLES, 1), np.float32)),
        labels_NL=(numbers_N % 2).astype(np.float32)[:, None],
        weights_N=np.ones(NUM_SAMPLES, np.float32),
        event_ms_N=numbers_N,
        record_ms_N=numbers_N,
        positions={},
    )
