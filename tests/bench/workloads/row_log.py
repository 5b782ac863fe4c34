"""A log with a base of many rows by the real writers, for benchmarks of followers and servers."""

# N rows, D dimension
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import structs

from springtide.app.config.load import Config, load_config
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.training.bootstrap import signature_of
from springtide.app.training.config import with_adagrad_eps
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.step.learner import Learner
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.write.writer import LogWriter
from springtide.embeddings.table import EmbeddingTable
from springtide_client.keys import hash_keys
from springtide_client.rows.row_block import RowBlock
from tests.support.config import Section, write_config
from tests.support.layers import sorted_layer

FEATURE, DIM = "item_id", 64
SETTINGS: Section = {
    "name": "lookups",
    "source": {"topic": "clicks"},
    "schema": {"label": "click", "categorical": ["user_id", "item_id"], "dense": ["age"]},
    "features": {"user_id": {}, "item_id": {}},
    "table": {"dim": DIM, "device_bytes": "512MiB"},
    "train": {"batch_size": 1024, "threads": 1},
}


def values_of(ids_N: npt.NDArray[np.int64], dim: int = DIM) -> npt.NDArray[np.float32]:
    """Return the rows of some ids, float32 (N, dim) in [-0.3, 0.3): a function of the id."""
    odd_D = 2 * np.arange(1, dim + 1, dtype=np.uint64) + np.uint64(1)
    bits_ND = (hash_keys(np.zeros(len(ids_N), np.uint16), ids_N)[:, None] * odd_D) >> np.uint64(40)
    return (bits_ND.astype(np.float32) - np.float32(2**23)) * np.float32(0.3 * 2.0**-23)


def write_log(folder: Path, num_rows: int, layers: Sequence[int] = (512, 256), settings: Section | None = None) -> Path:
    """Write a log whose base has ids 0 to num_rows, beside its `springtide.toml`; return the log's folder.

    `layers`: widths of both parts of the net; `settings`: more of the file.
    """
    paths: Section = {"table": {"disk_path": folder / "spill"}, "log": {"path": folder / "log"}}
    net = {"model": {"name": "dlrm", "options": {"bottom": layers, "top": layers}}}
    config = load_config(write_config(folder / "springtide.toml", SETTINGS, paths, net, settings or {}))
    with LogWriter.open(config.log, schema=config.schema) as log:
        write_base(config.log.path, _image(config, log, num_rows))
        log.start_after(log.first_base_head)
    return Path(config.log.path)


def _image(config: Config, log: LogWriter, num_rows: int) -> BaseImage:
    """Return the base, whose rows have no columns of a wide part."""
    config = replace(config, model=structs.replace(config.model, wide=False))
    spec = ModelSpec.of(config.schema, config.table.dim)
    table = EmbeddingTable(with_adagrad_eps(config.table), seed=config.train.seed)
    learner = Learner(build_model(config.model, spec, seed=config.train.seed), table, config.train, config.schema)
    state = TrainingState(learner, ProgressiveScores(config.schema.labels, config.train.window_samples), config.schema)
    signature = signature_of(config, learner.model)
    blocks = [_rows(config.schema.number(FEATURE), num_rows, signature.table.state_width)]
    return BaseImage(
        head=log.first_base_head,
        schema=signature.schema,
        table=TableImage(spec=signature.table, num_rows=num_rows, blocks=blocks),
        model=signature.model,
        meta=state.meta(created_ms=0),
        dense=state.base_arrays(),
        program=export_model(learner.model, spec),
    )


def _rows(feature: int, num_rows: int, state_width: int) -> RowBlock:
    ids_N, ones_N = np.arange(num_rows), np.ones(num_rows, np.int64)
    state = np.zeros((num_rows, state_width), np.float32)
    return sorted_layer(np.full(num_rows, feature, np.uint16), ids_N, values_of(ids_N), ones_N, ones_N * 1000, state)
