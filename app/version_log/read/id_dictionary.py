"""The dictionary from hashed ids to their strings: as sorted columns, and looked up at one version of a log.

Columns are `feature`, `id`, `offsets` and `bytes`, sorted by (feature, id), as texts.safetensors of a base has them:
string i is the UTF-8 text `bytes[offsets[i]:offsets[i + 1]]`.
"""

# K keys looked up
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from springtide.app.version_log.read.version_range import VersionRange
from springtide_client.format.tensors import Arrays
from springtide_client.keys import MISSING_ID, SHARED_ROW_OFFSET
from springtide_client.log.base import Base
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema

UInt16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]


class IdDictionary:
    """The id strings of a base and of the versions after it."""

    def __init__(self, base: Base, versions: VersionRange) -> None:
        merged = merge_id_strings(map(id_strings_of, versions.tensors_with("texts.id")))
        self._parts = [part for part in (base.id_strings, merged) if part is not None]

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> list[str | None]:
        """Return the string of each key; None if the id is a number or its string is not known."""
        found: list[str | None] = [None] * len(ids_K)
        for part in self._parts:
            for k, string in enumerate(strings_of(part, features_K, ids_K)):
                found[k] = string if string is not None else found[k]
        return found


def strings_of(part: Arrays, features_K: UInt16Array, ids_K: Int64Array) -> list[str | None]:
    """Return the string of each key in sorted columns; None if the key is not in them."""
    strings: list[str | None] = [None] * len(ids_K)
    places_K = find_id_strings(part, features_K, ids_K)
    offsets, content = part["offsets"], part["bytes"]
    for k in np.flatnonzero(places_K >= 0).tolist():
        start, end = offsets[places_K[k] : places_K[k] + 2].tolist()
        strings[k] = content[start:end].tobytes().decode()
    return strings


def find_id_strings(part: Arrays, features_K: UInt16Array, ids_K: Int64Array) -> Indices:
    """Return the index of each key in sorted columns; -1 if the key is not in them."""
    places_K = np.full(len(ids_K), -1, np.intp)
    for feature in np.unique(features_K).tolist():
        first, end = np.searchsorted(part["feature"], np.array([feature, feature + 1])).tolist()
        if first == end:
            continue
        keys = np.flatnonzero(features_K == feature)
        ids = part["id"][first:end]
        found = np.minimum(np.searchsorted(ids, ids_K[keys]), len(ids) - 1)
        places_K[keys] = np.where(ids[found] == ids_K[keys], first + found, -1)
    return places_K


def merge_id_strings(columns: Iterable[Arrays | None], dropped: RowBlock | None = None) -> Arrays | None:
    """Merge columns into sorted ones, each key once, without the keys in `dropped`; None if none is left.

    An id is the hash of its string, so equal keys have equal strings, whichever part one is taken from.
    """
    parts = [part for part in columns if part is not None and len(part["id"])]
    if not parts:
        return None
    feature = np.concatenate([part["feature"] for part in parts])
    id = np.concatenate([part["id"] for part in parts])
    lengths = np.concatenate([np.diff(part["offsets"]) for part in parts])
    sizes = [len(part["bytes"]) for part in parts]
    shifts = np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.int64)
    starts = np.concatenate([part["offsets"][:-1] + shift for part, shift in zip(parts, shifts, strict=True)])
    content = np.concatenate([part["bytes"] for part in parts])
    order = np.lexsort((id, feature))
    repeated = (feature[order[1:]] == feature[order[:-1]]) & (id[order[1:]] == id[order[:-1]])
    order = order[np.concatenate([[True], ~repeated])]
    if dropped is not None and len(dropped):
        order = order[dropped.find(feature[order], id[order]) < 0]
    if not len(order):
        return None
    offsets = np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64)
    return {
        "feature": feature[order],
        "id": id[order],
        "offsets": offsets,
        "bytes": content[_byte_indices(starts[order], offsets)],
    }


def id_strings_of(tensors: Arrays) -> Arrays | None:
    """Return the id strings that a record adds, as columns in any order; None if it adds none."""
    if "texts.id" not in tensors:
        return None
    return {name: tensors[f"texts.{name}"] for name in ("feature", "id", "offsets", "bytes")}


def take_strings(part: Arrays, places: Indices) -> Arrays:
    """Return some of the strings, as columns."""
    starts = part["offsets"][:-1][places]
    offsets = np.concatenate([[0], np.cumsum(np.diff(part["offsets"])[places])]).astype(np.int64)
    return {
        "feature": part["feature"][places],
        "id": part["id"][places],
        "offsets": offsets,
        "bytes": part["bytes"][_byte_indices(starts, offsets)],
    }


def decode_strings(offsets: Int64Array, content: npt.NDArray[np.uint8]) -> list[str]:
    """Return the strings that lie end to end in one tensor of UTF-8 bytes."""
    joined = content.tobytes()
    return [joined[start:end].decode() for start, end in pairwise(offsets.tolist())]


def display_id(row_id: int, string: str | None) -> str:
    """Return how an id is shown to people: its string if there is one."""
    if row_id == MISSING_ID:
        return "(missing)"
    return str(row_id) if string is None else string


def feature_name(schema: Schema, feature: int) -> str:
    """Return the name of the feature with this number; rows shared by ids that are not admitted are marked as such."""
    is_shared = feature >= SHARED_ROW_OFFSET
    own = feature - SHARED_ROW_OFFSET if is_shared else feature
    name = schema.row_names().get(own, f"feature {own}")
    return f"{name} (shared by ids not admitted)" if is_shared else name


def _byte_indices(starts: Int64Array, offsets: Int64Array) -> Int64Array:
    """Return the index of every byte of the slices that begin at `starts`; laid end to end they divide at `offsets`."""
    return np.repeat(starts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
