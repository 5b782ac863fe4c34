"""Erasures: which keys executed commands have erased, and up to which stream position.

When the stream is read again from before an erasure, its ids must not be learned from the records before it.
"""

# n keys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from springtide.app.version_log.trainer_meta import ErasureMeta, TrainerMeta
from springtide.stream.decode.erasure_filter import Erasure
from springtide.stream.positions import Partition, Position, positions_from_meta, positions_to_meta
from springtide_client.errors import EncodeError
from springtide_client.format.records import CommandEntry, StreamPosition, VersionMeta
from springtide_client.keys import encode_id
from springtide_client.rows.row_layer import RowLayer, sorted_layer
from springtide_client.schema import Schema

Positions = Mapping[str, StreamPosition]


def parse_keys(body: Mapping[str, Any], schema: Schema) -> list[tuple[int, int]]:
    """Return the keys a command names, as (feature number, id), each once; ValueError if one is malformed."""
    keys: dict[tuple[int, int], None] = {}
    named = body.get("keys")
    for key in named if isinstance(named, list) else []:
        if not isinstance(key, dict) or key.get("feature") not in schema.features or "id" not in key:
            raise ValueError(f"{key!r} is not a valid key of this log")
        keys[schema.number(key["feature"]), encode_id(key["id"])[0]] = None
    if not keys:
        raise ValueError("the command names no keys")
    return list(keys)


def keys_of_entry(entry: CommandEntry, schema: Schema) -> list[tuple[int, int]]:
    """Return the keys, as (feature number, id), that an executed command has erased."""
    if entry.kind != "forget" or entry.is_refused:
        return []
    keys = []
    for key in entry.keys:
        try:
            keys.append((schema.number(key.feature), encode_id(key.id)[0]))
        except (EncodeError, KeyError):
            continue
    return keys


def erased_keys(entries: Iterable[CommandEntry], schema: Schema) -> RowLayer:
    """Return the keys that executed commands have erased, as a layer without values."""
    keys = {key for entry in entries for key in keys_of_entry(entry, schema)}
    features = np.array([feature for feature, _ in keys], np.uint16)
    zeros = np.zeros(len(keys), np.int64)
    ids = np.array([row_id for _, row_id in keys], np.int64)
    return sorted_layer(features, ids, np.zeros((len(keys), 0), np.float32), zeros, zeros)


def erasures_of(
    entries: Iterable[CommandEntry], schema: Schema, *, otherwise: Positions | None = None
) -> list[Erasure]:
    """Return the erasure of each `forget` command; `otherwise`: its positions if the entry has none."""
    found = []
    for entry in entries:
        keys = keys_of_entry(entry, schema)
        positions = otherwise if entry.positions is None else entry.positions
        if keys and positions:
            found.append(Erasure(tuple(keys), positions_from_meta(positions)))
    return found


def erasures_ahead(erasures: Iterable[Erasure], positions: Mapping[Partition, Position]) -> list[Erasure]:
    """Return the erasures that matter when the stream is read on from these positions, each once."""
    found: list[Erasure] = []
    for erasure in erasures:
        if erasure not in found and erasure.affects_replay_from(positions):
            found.append(erasure)
    return found


def max_positions(one: Mapping[Partition, Position], other: Mapping[Partition, Position]) -> dict[Partition, Position]:
    """Return the higher offset of each partition; `one` decides the topic where the topic ids differ."""
    found = dict(one)
    for partition, at in other.items():
        here = found.setdefault(partition, at)
        if at.matches_topic(here.topic_id) and at.offset > here.offset:
            found[partition] = at
    return found


def high_water_marks(meta: VersionMeta) -> dict[Partition, Position]:
    """Return how far the stream was ever learned up to a version, which a rollback may have rewound since."""
    marks = positions_from_meta(TrainerMeta.of(meta).high_water_marks)
    return max_positions(positions_from_meta(meta.positions), marks)


def erasures_to_meta(erasures: Iterable[Erasure]) -> list[ErasureMeta]:
    """Return the erasures as a version's TrainerMeta holds them."""
    return [ErasureMeta(list(erasure.keys), positions_to_meta(erasure.until)) for erasure in erasures]


def erasures_from_meta(metas: Iterable[ErasureMeta]) -> list[Erasure]:
    """Invert `erasures_to_meta`."""
    return [Erasure(tuple(meta.keys), positions_from_meta(meta.until)) for meta in metas]
