"""What executed orders have forgotten, as versions tell it: which keys, and where in the stream that was.

Whoever reads a stretch of the stream again that lies before a forgetting must not learn its ids from there.
"""

# n keys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from springtide_client.errors import EncodeError
from springtide_client.format.records import StreamPosition, VersionMeta
from springtide_client.keys import encode_id
from springtide_client.rows.layers import RowLayer, sorted_layer
from springtide_client.schema import Schema

from app.version_log.trainer_meta import ErasureMeta, TrainerMeta
from stream.decode.erasure_filter import Erasure
from stream.positions import Partition, Position, positions_from_meta, positions_to_meta

Entry = Mapping[str, Any]
Positions = Mapping[str, StreamPosition]


def keys_of_entry(entry: Entry, schema: Schema) -> list[tuple[int, int]]:
    """The keys, (feature number, id), that an order of a version has forgotten."""
    named = entry.get("keys") if entry.get("kind") == "forget" else None
    result = entry.get("result")
    if not isinstance(named, list) or (isinstance(result, Mapping) and "refused" in result):
        return []
    keys = []
    for key in named:
        try:
            keys.append((schema.number(key["feature"]), encode_id(key["id"])[0]))
        except (EncodeError, KeyError, TypeError):
            continue
    return keys


def erased_keys(entries: Iterable[Entry], schema: Schema) -> RowLayer:
    """The keys that executed orders have forgotten, as a layer without values."""
    keys = {key for entry in entries for key in keys_of_entry(entry, schema)}
    features = np.array([feature for feature, _ in keys], np.uint16)
    zeros = np.zeros(len(keys), np.int64)
    ids = np.array([row_id for _, row_id in keys], np.int64)
    return sorted_layer(features, ids, np.zeros((len(keys), 0), np.float32), zeros, zeros)


def erasures_of(entries: Iterable[Entry], schema: Schema, *, otherwise: Positions | None = None) -> list[Erasure]:
    """Where in the stream each order has forgotten its keys; `otherwise`: where it does not say."""
    found = []
    for entry in entries:
        keys, positions = keys_of_entry(entry, schema), entry.get("positions", otherwise)
        if keys and positions:
            found.append(Erasure(tuple(keys), positions_from_meta(positions)))
    return found


def erasures_ahead(forgettings: Iterable[Erasure], positions: Mapping[Partition, Position]) -> list[Erasure]:
    """Those that reading on from the positions has to mind, each once."""
    found: list[Erasure] = []
    for forgetting in forgettings:
        if forgetting not in found and forgetting.affects_replay_from(positions):
            found.append(forgetting)
    return found


def max_positions(one: Mapping[Partition, Position], other: Mapping[Partition, Position]) -> dict[Partition, Position]:
    """The further of both in each partition; `one` says of which topic."""
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
