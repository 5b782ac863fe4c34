"""The texts behind hashed ids as sorted columns: what texts.safetensors of a base holds."""

# K keys asked for, n texts
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from springtide_client.format.tensors import Arrays
from springtide_client.rows.layers import RowLayer

Int64Array = npt.NDArray[np.int64]


def merge_id_strings(parts: Iterable[Arrays], dropped: RowLayer) -> Arrays | None:
    """One set of columns of all the parts, each text once, without those whose keys stand in `dropped`.

    An id is its text's hash, so that equal keys have equal texts, whichever part is taken. None where none is left.
    """
    parts = [part for part in parts if len(part["id"])]
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
    if len(dropped):
        order = order[dropped.find(feature[order], id[order]) < 0]
    if not len(order):
        return None
    offsets = np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64)
    return {
        "feature": feature[order],
        "id": id[order],
        "offsets": offsets,
        "bytes": content[_slices(starts[order], offsets)],
    }


def id_strings_of(tensors: Arrays) -> Arrays | None:
    """The texts that a record brings, as columns."""
    if "texts.id" not in tensors:
        return None
    return {name: tensors[f"texts.{name}"] for name in ("feature", "id", "offsets", "bytes")}


def decode_strings(offsets: Int64Array, content: npt.NDArray[np.uint8]) -> list[str]:
    """The strings that lie end to end in one tensor of UTF-8 bytes."""
    joined = content.tobytes()
    return [joined[start:end].decode() for start, end in pairwise(offsets.tolist())]


def _slices(starts: Int64Array, offsets: Int64Array) -> Int64Array:
    """The index of every byte of the slices that begin at `starts` and, put end to end, divide at `offsets`."""
    return np.repeat(starts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
