"""Cutting columns into pieces and joining pieces again; pieces are views where numpy allows it."""

# N samples, B samples of one piece
from collections.abc import Sequence

import numpy as np
from springtide_client.features import Features, Ragged


def slice_features(features: Features, start: int, stop: int) -> Features:
    """Samples start to stop."""
    lists = []
    for ragged in features.lists:
        first, last = ragged.offsets[start], ragged.offsets[stop]
        lists.append(Ragged(ragged.ids_M[first:last], ragged.offsets[start : stop + 1] - first))
    return Features(features.categorical_NC[start:stop], tuple(lists), features.dense_NF[start:stop])


def join_features(pieces: Sequence[Features]) -> Features:
    """The samples of all pieces, in order; at least one piece."""
    if len(pieces) == 1:
        return pieces[0]
    return Features(
        np.concatenate([piece.categorical_NC for piece in pieces]),
        tuple(join_lists([piece.lists[number] for piece in pieces]) for number in range(len(pieces[0].lists))),
        np.concatenate([piece.dense_NF for piece in pieces]),
    )


def join_lists(pieces: Sequence[Ragged]) -> Ragged:
    """The lists of all pieces, in order."""
    lengths_N = np.concatenate([np.diff(piece.offsets) for piece in pieces])
    offsets = np.zeros(len(lengths_N) + 1, np.int64)
    np.cumsum(lengths_N, out=offsets[1:])
    return Ragged(np.concatenate([piece.ids_M for piece in pieces]), offsets)
