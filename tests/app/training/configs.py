"""A configuration for random_clicks.SCHEMA, in a folder of its own."""

from pathlib import Path

from springtide.app.config.load import Config, load_config

CONFIG = """
name = "test"
[schema]
label = "click"
timestamp = "ts"
weight = "w"
categorical = ["user_id", "item_id"]
multi_value = ["genres"]
sequence = ["last_items"]
dense = ["age", "price"]
share = {{ last_items = "item_id" }}
[table]
dim = 4
device_bytes = "{device_bytes}"
disk_path = "{folder}/spill"
{table}
[train]
batch_size = 32
{train}
[log]
path = "{folder}/log"
"""


NET_ALONE = "[model]\nwide = false\n"


def make_config(folder: Path, device_bytes: str = "8MiB", more: str = "", table: str = "", train: str = "") -> Config:
    """`table`, `train`: more keys of [table] and [train]; `more`: more sections."""
    folder.mkdir(exist_ok=True)
    path = folder / "springtide.toml"
    path.write_text(CONFIG.format(folder=folder, device_bytes=device_bytes, table=table, train=train) + more)
    return load_config(path)
