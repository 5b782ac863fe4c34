"""quality.real_logs: progressive scores on real logs, one pass in row order, through encoder and learner alone.

`springtide bench quality.real_logs [--sets movielens-100k,...] [--model deepfm] [--batch-size 16]` prints AUC
and logloss beside the floors that the data's README states. Names the sets whose files are absent, and skips them.
"""

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.step.learner import Learner
from springtide.embeddings.config import TableConfig
from springtide.embeddings.table import EmbeddingTable
from springtide.stream.columns import Batch
from springtide_client.encode import encode_instances
from springtide_client.schema import Schema
from tests.bench.harness.report import DATA
from tests.support.batches import batch_of, cut


@dataclass(frozen=True)
class RealLog:
    """A data set's features, and the AUC and logloss that a model must beat."""

    file: str
    auc: float
    logloss: float
    categorical: tuple[str, ...]
    multi_value: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    timestamp: str | None = "ts"
    first_row: int = 0

    @property
    def schema(self) -> Schema:
        return Schema(
            labels=("click",),
            timestamp=self.timestamp,
            categorical=self.categorical,
            multi_value=self.multi_value,
            dense=self.dense,
        )


MOVIELENS = ("user_id", "item_id", "gender", "occupation", "zip_code")
OPEN_BANDIT = ("item_id", "position", *(f"user_feature_{n}" for n in range(4)), "campaign")
JOURNEY = ("household_id", "product_id", "store_id", "manufacturer_id", "department", "product_category")
SETS = {  # the defaults were chosen on these
    "movielens-100k": RealLog("movielens-100k", 0.750, 0.590, MOVIELENS, ("genres",), ("age", "release_year")),
    "movielens-two-fields": RealLog("movielens-100k", 0.7461, 0.5941, MOVIELENS[:2]),
    "talkingdata-100k": RealLog("talkingdata-100k", 0.9451, 0.0107, ("ip", "app", "device", "os", "channel")),
    "criteo-kaggle-8k": RealLog(
        "criteo-kaggle-8k",
        0.6651,
        0.4943,
        tuple(f"c{n}" for n in range(1, 27)),
        dense=tuple(f"i{n}" for n in range(1, 14)),
        timestamp=None,
    ),
    "open-bandit": RealLog("open-bandit", 0.5323, 0.0304, OPEN_BANDIT),
    "simulated-completejourney": RealLog(
        "simulated-completejourney", 0.8451, 0.4913, (*JOURNEY, "product_type", "week")
    ),
}
# rows that nothing was chosen on: of Complete Journey only the first 100,000 were looked at
UNSEEN = {"simulated-completejourney-end": replace(SETS["simulated-completejourney"], first_row=300_000)}


@dataclass
class Settings:
    """The settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(batch_size=16))
    table: TableConfig = field(default_factory=lambda: TableConfig(device_bytes="256MiB"))


def read_batch(folder: Path, real: RealLog) -> Batch:
    """Return the whole set as one batch."""
    schema = real.schema
    table = pyarrow.parquet.read_table(folder / f"{real.file}.parquet")
    names = [*schema.features, *schema.dense, "click"]
    table = table.slice(real.first_row)
    rows = table.select(names).to_pylist()
    event_ms_N = table["ts"].to_numpy() if real.timestamp else 0
    return batch_of(encode_instances(schema, rows), [row["click"] for row in rows], event_ms_N)


def run(real: RealLog, settings: Settings, batch: Batch) -> dict[str, Any]:
    """Learn one pass; return the scores of the whole run."""
    schema, train = real.schema, settings.train
    table = EmbeddingTable(with_adagrad_eps(settings.table), seed=train.seed, tracked=False)
    model = build_model(settings.model, ModelSpec.of(schema, settings.table.dim), seed=train.seed)
    learner, scores = Learner(model, table, train, schema), ProgressiveScores(schema.labels, train.window_samples)
    began = time.perf_counter()
    for start in range(0, len(batch), train.batch_size):
        report = learner.step(cut(batch, start, start + train.batch_size))
        scores.observe(report.logits_NL, report.labels_NL, report.weights_N)
        scores.delta()
    seconds = time.perf_counter() - began
    table.close()
    return {**scores.document()["whole"], "samples_per_second": len(batch) / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--model", default="dlrm")
    parser.add_argument("--options", default="{}", help="of the model, as JSON")
    parser.add_argument("--table", default="{}", help="keys of [table], as JSON")
    parser.add_argument("--train", default="{}", help="keys of [train], as JSON")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DATA, help="where the logs' .parquet files are")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no real logs to learn, {arguments.data} is not there")
        return
    torch.set_num_threads(arguments.threads)
    print(f"model {arguments.model} {arguments.options} table {arguments.table} train {arguments.train}")
    for name in arguments.sets.split(","):
        real = SETS[name]
        batch = read_batch(arguments.data, real)
        results = []
        for seed in range(arguments.seeds):
            settings = Settings(
                model=ModelConfig(name=arguments.model, options=json.loads(arguments.options)),
                train=TrainConfig(batch_size=arguments.batch_size, seed=seed, **json.loads(arguments.train)),
                table=TableConfig(**{"device_bytes": "256MiB", **json.loads(arguments.table)}),
            )
            results.append(run(real, settings, batch))
        auc, logloss, rate = (
            float(np.mean([result[key] for result in results])) for key in ("auc", "logloss", "samples_per_second")
        )
        print(
            f"{name:26} AUC {auc:.4f} (floor {real.auc:.4f}) {'ahead' if auc > real.auc else 'BEHIND'}   "
            f"logloss {logloss:.5f} (floor {real.logloss:.4f}) {'ahead' if logloss < real.logloss else 'BEHIND'}   "
            f"{rate:,.0f} samples/s",
            flush=True,
        )
