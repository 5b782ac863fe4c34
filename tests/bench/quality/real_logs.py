"""quality.real_logs: progressive scores on real logs, one pass in row order, through encoder and learner alone.

`springtide bench quality.real_logs [--sets movielens-100k,...] [--model deepfm] [--batch-size 16]` prints AUC
and logloss beside the floors that the data's README states. Names the sets whose files are absent, and skips them.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.scores.auc import click_auc
from springtide.app.training.config import TableSettings, TrainConfig
from springtide.stream.columns import Batch
from springtide_client.encode import encode_instances
from springtide_client.schema import Schema
from tests.bench.harness.report import DATA
from tests.bench.quality.one_pass import DEVICE_BYTES, RunConfig, learn_once, logloss
from tests.support.batches import batch_of


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


def read_batch(folder: Path, real: RealLog) -> Batch:
    """Return the whole set as one batch."""
    schema = real.schema
    table = pyarrow.parquet.read_table(folder / f"{real.file}.parquet")
    names = [*schema.features, *schema.dense, "click"]
    table = table.slice(real.first_row)
    rows = table.select(names).to_pylist()
    event_ms_N = table["ts"].to_numpy() if real.timestamp else 0
    return batch_of(encode_instances(schema, rows), [row["click"] for row in rows], event_ms_N)


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
        if not (arguments.data / f"{real.file}.parquet").is_file():
            print(f"skipped: {name}, {real.file}.parquet is not in {arguments.data}")
            continue
        batch = read_batch(arguments.data, real)
        config = RunConfig(
            schema=real.schema,
            model=ModelConfig(name=arguments.model, options=json.loads(arguments.options), wide=False),
            train=TrainConfig(batch_size=arguments.batch_size, min_batch_size=0, **json.loads(arguments.train)),
            table=TableSettings(**{"device_bytes": DEVICE_BYTES, **json.loads(arguments.table)}),
        )
        passes = [learn_once(config.with_train(seed=seed), batch) for seed in range(arguments.seeds)]
        clicked_N = batch.labels_NL[:, 0] > 0.5
        auc = float(np.mean([click_auc(each.logits_N, clicked_N) for each in passes]))
        loss = float(np.mean([logloss(each.logits_N, clicked_N) for each in passes]))
        rate = float(np.mean([len(batch) / each.seconds for each in passes]))
        print(
            f"{name:26} AUC {auc:.4f} (floor {real.auc:.4f}) {'ahead' if auc > real.auc else 'BEHIND'}   "
            f"logloss {loss:.5f} (floor {real.logloss:.4f}) {'ahead' if loss < real.logloss else 'BEHIND'}   "
            f"{rate:,.0f} samples/s",
            flush=True,
        )
