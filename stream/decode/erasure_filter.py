"""Drops erased ids from records that precede their erasure, when the stream is read again.

An erased id becomes a missing one, or is removed from its list; the rest of its record is learned.
"""

# N samples, C categorical features, M elements of a list, T strings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Columns
from springtide.stream.positions import Partition, Position
from springtide_client.features import Features, IdStrings
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema


@dataclass(frozen=True)
class Erasure:
    """Keys, (feature number, id), that were erased, and the positions up to which the stream was learned by then."""

    keys: tuple[tuple[int, int], ...]
    until: Mapping[Partition, Position]

    def affects_replay_from(self, positions: Mapping[Partition, Position]) -> bool:
        """Return True if a reader that starts at these positions meets records that precede the erasure."""
        return any(
            (start := positions.get(partition)) is None
            or (start.matches_topic(end.topic_id) and start.offset < end.offset)
            for partition, end in self.until.items()
            if end.offset > 0
        )


class ErasureFilter:
    """Drops ids from decoded columns, exactly where their records precede the erasure, together with their strings.

    The decoder emits the string of an id once. A string that was dropped here is needed again when its id comes back
    after the erasure: see needs_string_replay().
    """

    def __init__(self, schema: Schema, erasures: Sequence[Erasure]) -> None:
        self._categorical = [schema.number(name) for name in schema.categorical]
        self._lists = [schema.number(name) for name in schema.lists]
        self._has_dropped_strings = False  # since the last replay
        self._erasures = [(erasure.until, _ids_by_feature(erasure)) for erasure in erasures]

    def needs_string_replay(self, partition: Partition, end: int) -> bool:
        """Return True if records of the partition before offset `end` may bring back an id whose string was dropped.

        The decoder must then emit all strings again, and on_string_replay() be called.
        """
        return self._has_dropped_strings and any(
            end > (until[partition].offset if partition in until else 0) for until, _ in self._erasures
        )

    def on_string_replay(self) -> None:
        """The decoder emits all strings again."""
        self._has_dropped_strings = False

    def apply(self, columns: Columns, partition: Partition, topic_id: str) -> Columns:
        """The columns of one partition without erased ids and without the strings of ids that no longer occur."""
        num_strings = len(columns.id_strings.strings)
        for until, ids in self._erasures:
            end = until.get(partition)
            if end is None or not end.matches_topic(topic_id) or not len(columns):
                continue
            before_N = columns.offset_N < end.offset
            if before_N.any():
                columns = replace(columns, features=self._without_ids(columns.features, ids, before_N))
                columns = replace(columns, id_strings=self._without_strings(columns, ids))
        self._has_dropped_strings |= len(columns.id_strings.strings) < num_strings
        return columns

    def _without_ids(
        self, features: Features, ids: dict[int, npt.NDArray[np.int64]], before_N: npt.NDArray[np.bool_]
    ) -> Features:
        categorical_NC, lists = features.categorical_NC.copy(), []
        for c, feature in enumerate(self._categorical):
            if feature in ids:
                categorical_NC[before_N & np.isin(categorical_NC[:, c], ids[feature]), c] = MISSING_ID
        for feature, ragged in zip(self._lists, features.lists, strict=True):
            if feature in ids:
                lengths_N = np.diff(ragged.offsets)
                kept_M = ~(np.repeat(before_N, lengths_N) & np.isin(ragged.ids_M, ids[feature]))
                ragged = ragged.keep(kept_M)
            lists.append(ragged)
        return replace(features, categorical_NC=categorical_NC, lists=tuple(lists))

    def _without_strings(self, columns: Columns, ids: dict[int, npt.NDArray[np.int64]]) -> IdStrings:
        """The strings, except those of erased ids that no longer occur in the columns."""
        id_strings = columns.id_strings
        if not id_strings.strings:
            return id_strings
        kept_T = np.ones(len(id_strings.strings), np.bool_)
        for feature, erased in ids.items():
            is_erased_T = (id_strings.features == feature) & np.isin(id_strings.ids, erased)
            kept_T &= ~is_erased_T | np.isin(id_strings.ids, self._present_ids(columns.features, feature))
        strings = [id_strings.strings[t] for t in np.flatnonzero(kept_T)]
        return IdStrings(id_strings.features[kept_T], id_strings.ids[kept_T], strings)

    def _present_ids(self, features: Features, feature: int) -> npt.NDArray[Any]:
        parts = [features.categorical_NC[:, c] for c, number in enumerate(self._categorical) if number == feature]
        parts += [ragged.ids_M for number, ragged in zip(self._lists, features.lists, strict=True) if number == feature]
        return np.concatenate(parts)


def _ids_by_feature(erasure: Erasure) -> dict[int, npt.NDArray[np.int64]]:
    features = {feature for feature, _ in erasure.keys}
    return {f: np.array([row_id for feature, row_id in erasure.keys if feature == f], np.int64) for f in features}
