"""A log with a base of many rows, written by the real writers, for benchmarks of what follows and answers."""

# N rows, D dimension
from pathlib import Path

import numpy as np
from springtide_client.base import ModelName, TableShape
from springtide_client.keys import mix_keys
from springtide_client.layers import RowLayer, sorted_layer
from springtide_client.records import Tip, VersionMeta
from springtide_client.schema import Schema

from app.models.export import export_model
from app.models.interface import ModelSpec
from app.models.registry import ModelConfig, build_model
from app.versions.base_writer import BaseImage, write_base
from app.versions.config import LogConfig
from app.versions.writer import LogWriter

FEATURE = "item_id"
SCHEMA = Schema(labels=("click",), categorical=("user_id", FEATURE))
NUMBER = SCHEMA.number(FEATURE)


def values_of(ids_N: np.ndarray, dim: int, seed: int = 0) -> np.ndarray:
    """The rows of some ids, float32 (N, dim): known without asking anyone."""
    step_D = np.arange(1, dim + 1, dtype=np.uint64)
    mixed_N = mix_keys(np.full(len(ids_N), seed, np.uint16), ids_N)
    bits_ND = (mixed_N[:, None] * (2 * step_D + 1)[None, :]) >> np.uint64(40)
    return (bits_ND.astype(np.float32) - np.float32(2**23)) * np.float32(0.3 * 2.0**-23)


def base_rows(num_rows: int, dim: int) -> RowLayer:
    """Ids 0 to num_rows of the one feature."""
    ids_N = np.arange(num_rows)
    ones_N = np.ones(num_rows, np.int64)
    state_N1 = np.zeros((num_rows, 1), np.float32)
    features_N = np.full(num_rows, NUMBER, np.uint16)
    return sorted_layer(features_N, ids_N, values_of(ids_N, dim), ones_N, ones_N * 1000, state_N1)


def write_log(path: Path, *, num_rows: int, dim: int) -> LogWriter:
    """A log whose first base holds the rows; the writer stays open for versions on top."""
    log = LogWriter.open(LogConfig(path=path, durable_seconds=3600.0), schema=SCHEMA)
    spec = ModelSpec.of(SCHEMA, dim)
    model = build_model(ModelConfig(name="logistic"), spec, seed=0)
    tip: Tip = log.first
    write_base(
        path,
        BaseImage(
            tip=tip,
            schema=SCHEMA,
            table=TableShape(dim=dim, state_width=1, seed=0, init_scale=0.01),
            model=ModelName(name="logistic"),
            meta=VersionMeta(fingerprint=SCHEMA.fingerprint()),
            dense={f"dense.{name}": tensor.detach().numpy() for name, tensor in model.state_dict().items()},
            num_rows=num_rows,
            blocks=[base_rows(num_rows, dim)],
            program=export_model(model, spec),
        ),
    )
    log.begin(tip)
    return log
