"""The configuration of a torture: deterministic batches, every policy on, a table so small that rows spill."""

from collections.abc import Sequence
from pathlib import Path

from tests.torture.verify.expected_rows import BATCH, FEWEST, MIN_COUNT, TTL_MS

TOPIC = "clicks"
WINDOW_SAMPLES = 2_000
# the net is treated as a large one: followers get it at its own pace, its exact state is written beside the log
PACED = 'exact_bytes = 0\ndense_seconds = 0.2\ndense_cost = 1.0\ndense_dtype = "bfloat16"'
CONFIG = """
name = "torture"
[source]
topic = "{topic}"
bootstrap_servers = "{address}"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id", "item_id"]
multi_value = ["genres"]
sequence = ["last_items"]
dense = ["age"]
share = {{ last_items = "item_id" }}
[features.item_id]
admission = {{ min_count = {min_count} }}
[features.user_id]
ttl_seconds = {ttl_seconds}
[table]
dim = 8
device_bytes = "1104KiB"
disk_path = "{folder}/spill"
admission = {{ min_count = 1, sketch_bytes = "1MiB" }}
[model]
name = "dlrm"
wide = true
crosses = 4
[train]
batch_size = {batch}
min_batch_size = {fewest}
max_wait_seconds = inf
threads = 1
window_samples = {window}
[scores]
by = ["user_id"]
segment_bytes = "2MiB"
reference_samples = 3000
[log]
path = "{folder}/disk/log"
publish_seconds = {publish}
durable_seconds = 0.15
base_minutes = {base_minutes}
base_files = 3
keep = {{ hourly = 2 }}
onnx = false
{log}
[serve]
port = {port}
"""

# changes of the settings, any of which may be in effect: users and items keep their rows' counts under all of them
CHANGES = {
    "dim": ("dim = 8", "dim = 12"),
    "row optimizer": ("dim = 8", 'optimizer = {{ name = "adagrad" }}\ndim = 8'),
    "dense optimizer": ("[train]", '[train]\noptimizer = {{ name = "sgd", lr = 0.01 }}'),
    "net": ('name = "dlrm"', 'name = "deepfm"'),
    "without the wide part": ("wide = true", "wide = false"),
    "without crosses": ("crosses = 4", "crosses = 0"),
    "more crosses": ("crosses = 4", "crosses = 9"),
    "without genres": ('multi_value = ["genres"]\n', ""),
    "without age": ('dense = ["age"]\n', ""),
    "another label": ('label = "click"', 'labels = ["click", "bought"]'),
    "shorter lists": ("[features.item_id]", "[features.last_items]\nmax_length = 30\n[features.item_id]"),
}


def write_config(
    path: Path,
    folder: Path,
    *,
    address: str,
    port: int = 1,
    publish: float = 0.05,
    base_minutes: float = 0.03,
    log: str = "",
    changes: Sequence[str] = (),
) -> Path:
    """Write a springtide.toml whose log and spill are in `folder`; `changes` are names of CHANGES, `log`
    more lines of `[log]`.
    """
    text = CONFIG
    for name in changes:
        assert CHANGES[name][0] in text
        text = text.replace(*CHANGES[name], 1)
    path.write_text(
        text.format(
            topic=TOPIC,
            address=address,
            min_count=MIN_COUNT,
            ttl_seconds=TTL_MS // 1000,
            folder=folder,
            batch=BATCH,
            fewest=FEWEST,
            window=WINDOW_SAMPLES,
            port=port,
            publish=publish,
            base_minutes=base_minutes,
            log=log,
        )
    )
    return path
