"""The settings of a torture: a table so small that rows spill, versions many times a second; everything is on one disk.

`TORTURED` adds deterministic batches and every policy.
"""

import math
from pathlib import Path

from tests.support.config import Section, write_config
from tests.torture.verify.expected_rows import BATCH, FEWEST, MIN_COUNT, TTL_MS

TOPIC = "clicks"
WINDOW_SAMPLES = 2_000
COMMON = """
name = "torture"
[schema]
label = "click"
timestamp = "ts"
request = "item_id"
categorical = ["user_id", "item_id"]
sequence = ["last_items"]
dense = ["age"]
share = { last_items = "item_id" }
[table]
dim = 8
device_bytes = "1104KiB"
[model]
name = "dlrm"
wide = true
crosses = 4
[train]
threads = 1
[scores]
by = ["user_id"]
group = "user_id"
group_bytes = "256KiB"
segment_bytes = "2MiB"
[log]
publish_seconds = 0.05
durable_seconds = 0.15
base_minutes = 0.03
onnx = false
"""
TORTURED: Section = {
    "schema": {"multi_value": ["genres"]},
    "features": {"item_id": {"admission": {"min_count": MIN_COUNT}}, "user_id": {"ttl_seconds": TTL_MS // 1000}},
    "table": {"admission": {"min_count": 1, "sketch_bytes": "1MiB"}},
    "train": {
        "batch_size": BATCH,
        "min_batch_size": FEWEST,
        "max_wait_seconds": math.inf,
        "window_samples": WINDOW_SAMPLES,
    },
    "scores": {"reference_samples": 3000},
    "log": {"base_files": 3, "keep": {"hourly": 2}},
}
# the net is treated as a large one: followers get it at its own pace, its exact state is written beside the log
PACED: Section = {"log": {"exact_bytes": 0, "dense_seconds": 0.2, "dense_cost": 1.0, "dense_dtype": "bfloat16"}}

# changes of the settings, any of which may be in effect: users and items keep their rows' counts under all of them
CHANGES: dict[str, Section] = {
    "dim": {"table": {"dim": 12}},
    "row optimizer": {"table": {"optimizer": {"name": "adagrad"}}},
    "dense optimizer": {"train": {"optimizer": {"name": "sgd", "lr": 0.01}}},
    "net": {"model": {"name": "deepfm"}},
    "without the wide part": {"model": {"wide": False}},
    "without crosses": {"model": {"crosses": 0}},
    "more crosses": {"model": {"crosses": 9}},
    "without genres": {"schema": {"multi_value": None}},
    "without age": {"schema": {"dense": None}},
    "another label": {"schema": {"label": None, "labels": ["click", "bought"]}},
    "shorter lists": {"features": {"last_items": {"max_length": 30}}},
}


def write_settings(folder: Path, address: str, *layers: Section) -> Path:
    """Write a springtide.toml into the folder, for a broker at this address; log and spill are in the folder too."""
    places = {
        "source": {"topic": TOPIC, "bootstrap_servers": address},
        "table": {"disk_path": folder / "spill"},
        "log": {"path": folder / "disk" / "log"},
    }
    return write_config(folder / "springtide.toml", COMMON, places, *layers)
