"""The names under which a version carries things: rows, forgotten keys, texts; the log specification's writing half."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from springtide_client.features import IdStrings

from embeddings.rows import TableDelta

Arrays = dict[str, npt.NDArray[Any]]


def with_prefix(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """The arrays by their full names."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Those of a group, by their own names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def delta_to_arrays(touched: TableDelta) -> Arrays:
    """A cut; a group without anything in it is absent."""
    arrays: Arrays = {}
    if len(touched):
        arrays |= {
            "rows.feature": touched.features,
            "rows.id": touched.ids,
            "rows.value": touched.values,
            "rows.state": touched.states,
            "rows.count": touched.counts,
            "rows.last_seen": touched.last_seen,
        }
    if len(touched.forgotten_ids):
        arrays |= {"forgotten.feature": touched.forgotten_features, "forgotten.id": touched.forgotten_ids}
    return arrays


def arrays_to_delta(arrays: Mapping[str, npt.NDArray[Any]], *, dim: int, state_width: int) -> TableDelta:
    """A cut as a version tells it."""
    none: Arrays = {
        "rows.feature": np.zeros(0, np.uint16),
        "rows.id": np.zeros(0, np.int64),
        "rows.value": np.zeros((0, dim), np.float32),
        "rows.state": np.zeros((0, state_width), np.float32),
        "rows.count": np.zeros(0, np.int64),
        "rows.last_seen": np.zeros(0, np.int64),
        "forgotten.feature": np.zeros(0, np.uint16),
        "forgotten.id": np.zeros(0, np.int64),
    }
    return TableDelta(*(arrays.get(name, empty) for name, empty in none.items()))


def sketch_to_arrays(blocks_B: npt.NDArray[np.int64], bytes_B64: npt.NDArray[np.uint8]) -> Arrays:
    """Blocks of the admission sketch that changed; nothing where none did."""
    return {"sketch.block": blocks_B, "sketch.bytes": bytes_B64} if len(blocks_B) else {}


def id_strings_to_arrays(texts: Iterable[IdStrings]) -> Arrays:
    """Texts end to end in one array of bytes."""
    parts = list(texts)
    encoded = [text.encode() for part in parts for text in part.strings]
    if not encoded:
        return {}
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return {
        "texts.feature": np.concatenate([part.features for part in parts]),
        "texts.id": np.concatenate([part.ids for part in parts]),
        "texts.offsets": offsets,
        "texts.bytes": np.frombuffer(b"".join(encoded), np.uint8),
    }
