"""The state of a DynamicEmbedding for a state_dict: all rows, the admission sketch, and settings."""

# N rows, B blocks of the admission sketch
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from springtide.embeddings.policy.admission import BLOCK_BYTES
from springtide.embeddings.rows import Int64Array, TableDelta
from springtide.embeddings.table import EmbeddingTable
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.rows.row_block import RowBlock

State = dict[str, Any]  # tensors, numbers and strings, which torch.load(weights_only=True) accepts
COLUMNS = {"features": 1, "ids": 1, "values": 2, "states": 2, "counts": 1, "last_seen": 1}  # name -> number of axes
OTHERS = (
    "sketch",
    "sketch_age",
    "optimizer",
    "lr",
    "seed",
    "init_scale",
    "num_ids",
    "time_ms",
    "has_event_time",
    "shard",
)
FLOATS = ("values", "states")
AGES, MAX_CALLS = 64, 1024


def export_state(table: EmbeddingTable) -> State:
    """All rows with optimizer state, count and last-seen, spilled and shared ones too; the sketch; settings."""
    rows = table.export()
    columns = zip(COLUMNS, (rows.feature, rows.id, *rows.contents), strict=True)
    # not uint16, which not every reader knows
    tensors = {name: torch.from_numpy(np.asarray(column, _dtype_of(name))) for name, column in columns}
    return {
        **tensors,
        "sketch": torch.from_numpy(table.admission.read_all()),
        "sketch_age": table.admission.sketch_info().age,
        "optimizer": table.optimizer.name,
        "lr": float(table.lr),
        "seed": table.seed,
        "init_scale": float(table.config.init_scale),
    }


def check_state(state: Mapping[str, Any], table: EmbeddingTable) -> None:
    """ValueError if this state cannot be loaded into this table."""
    missing = {*COLUMNS, *OTHERS} - set(state)
    if missing:
        raise ValueError(f"this is not the state of a DynamicEmbedding: it lacks {sorted(missing)}")
    if state["optimizer"] != table.optimizer.name:
        raise ValueError(
            f"rows trained by {state['optimizer']!r} cannot be trained on by {table.optimizer.name!r}: "
            "create the object with their optimizer, or copy only the rows, by export and import_arrow"
        )
    if not (state["lr"] >= 0 and math.isfinite(state["lr"]) and math.isfinite(state["init_scale"])):
        raise ValueError(f"the state has the invalid lr {state['lr']} or init_scale {state['init_scale']}")
    if not 0 <= state["time_ms"] < 2**63:
        raise ValueError(f"the state has the invalid time_ms {state['time_ms']}")
    widths = {"values": table.dim, "states": table.layout.state_width}
    num_rows = len(state["ids"])
    for name, num_axes in COLUMNS.items():
        shape, dtype = tuple(state[name].shape), state[name].dtype
        expected = (num_rows,) if num_axes == 1 else (num_rows, widths[name])
        if shape != expected or dtype.is_floating_point != (name in FLOATS):
            raise ValueError(f"{name} are {dtype} of shape {shape} in the state, but must be of shape {expected} here")
    if not all(torch.isfinite(state[name]).all() for name in FLOATS):
        raise ValueError("the state contains numbers that are not finite")
    keys = torch.stack([state["features"].to(torch.int64), state["ids"].to(torch.int64)])
    if len(torch.unique(keys, dim=1).T) < num_rows or not set(state["features"].tolist()) <= {0, SHARED_ROW_OFFSET}:
        raise ValueError("the state contains a row twice, or a row of another table")
    sketch, own = state["sketch"], table.admission.sketch_info()
    if own.counting and len(sketch) and tuple(sketch.shape) != (own.num_blocks, BLOCK_BYTES):
        raise ValueError(
            f"the state has an admission sketch of {sketch.numel()} bytes, this object one of "
            f"{own.num_blocks * BLOCK_BYTES}: create the object with the same sketch_bytes"
        )


def import_state(table: EmbeddingTable, state: Mapping[str, Any]) -> None:
    """Load a checked state into a new table, the most recently seen rows last, so that they are evicted last."""
    table.set_lr(float(state["lr"]))
    if table.admission.sketch_info().counting and len(state["sketch"]):
        sketch = state["sketch"].cpu().numpy().astype(np.uint8)
        table.admission.restore(np.arange(len(sketch)), sketch)
    table.admission.age = int(state["sketch_age"])
    arrays = {name: state[name].detach().cpu().numpy().astype(_dtype_of(name), copy=False) for name in COLUMNS}
    order: Int64Array = np.argsort(arrays["last_seen"], kind="stable")
    rows = RowBlock(arrays["features"].astype(np.uint16), *(arrays[name] for name in list(COLUMNS)[1:]))
    # the table takes all rows of one call as equally old
    step = max(1, table.memory.store.num_slots // AGES, len(order) // MAX_CALLS)
    for start in range(0, len(order), step):
        table.restore(TableDelta(rows.take(order[start : start + step])))


def _dtype_of(name: str) -> Any:
    return np.float32 if name in FLOATS else np.int32 if name == "features" else np.int64
