"""Merges the shards of a version that the ranks of one trainer write into what one rank alone would have written.

Every key belongs to one rank, so rows, forgotten keys, strings and items are set side by side. Two ranks may count keys
in one block of the sketch, where their ranges meet: each counter then gets the larger count.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from springtide_client.errors import LogError
from springtide_client.format.tensors import Array, Arrays

ROWS = (".feature", ".id", ".value", ".state", ".count", ".last_seen")
STRINGS = ("texts", "items")  # groups of `feature`, `id`, `offsets`, `bytes`
SKETCH_BLOCK, SKETCH_BYTES = "sketch.block", "sketch.bytes"
COUNTERS = slice(4, None)  # of a sketch block, behind its age as u32


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard record as its version record names it."""

    rank: int
    checksum: int


def merge_shard_tensors(own: Arrays, shards: Sequence[Arrays]) -> Arrays:
    """Return the tensors of a version record with those of its shard records.

    LogError if two ranks write the same tensor, unless it is one of rows, keys, strings, items or the sketch.
    """
    if not any(shards):
        return own
    parts = [own, *shards]
    merged: Arrays = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        having = [part for part in parts if name in part]
        if len(having) == 1:
            merged[name] = having[0][name]
        elif is_offsets(name):
            merged[name] = _join_offsets([part[name] for part in having])
        elif is_row_column(name):
            merged[name] = np.concatenate([part[name] for part in having])
        elif name not in (SKETCH_BLOCK, SKETCH_BYTES):
            raise LogError(f"two ranks have written the tensor {name!r} of one version")
    if SKETCH_BLOCK not in merged and any(SKETCH_BLOCK in part for part in parts):
        having = [part for part in parts if SKETCH_BLOCK in part]
        merged[SKETCH_BLOCK], merged[SKETCH_BYTES] = _merge_blocks(
            np.concatenate([part[SKETCH_BLOCK] for part in having]),
            np.concatenate([part[SKETCH_BYTES] for part in having]),
        )
    for array in merged.values():
        array.flags.writeable = False
    return merged


def is_row_column(name: str) -> bool:
    """Return True for tensors that hold one entry for each key, or the bytes of strings."""
    group = name.rpartition("/")[2].partition(".")[0]
    return (group in ("rows", "forgotten") and name.endswith(ROWS)) or group in STRINGS


def is_offsets(name: str) -> bool:
    """Return True for tensors that say where strings begin."""
    return name in {f"{group}.offsets" for group in STRINGS}


def _join_offsets(parts: Sequence[Array]) -> Array:
    """Return the offsets into the bytes of all parts, end to end."""
    ends = np.cumsum([0, *(part[-1] for part in parts)])
    return np.concatenate([parts[0][:1], *(part[1:] + end for part, end in zip(parts, ends[:-1], strict=True))])


def _merge_blocks(blocks: Array, contents: Array) -> tuple[Array, Array]:
    """Return each block once, u8 (b, 64). One that several ranks have written gets the larger of their counts.

    So no id is counted less often than it came. Counts of an older age are halved as often as they are behind.
    """
    unique, inverse = np.unique(blocks, return_inverse=True)
    ages = contents[:, :4].copy().view(np.uint32)[:, 0]
    newest = np.zeros(len(unique), np.uint32)
    np.maximum.at(newest, inverse, ages)
    halvings = np.minimum(newest[inverse] - ages, 8).astype(np.uint8)
    counters = contents[:, COUNTERS] >> halvings[:, np.newaxis]
    merged = np.zeros((len(unique), contents.shape[1]), np.uint8)
    np.maximum.at(merged[:, COUNTERS], inverse, counters)
    merged[:, :4] = newest[:, np.newaxis].view(np.uint8)
    return unique, merged
