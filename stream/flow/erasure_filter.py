"""Ids that records before some positions have no more: they were forgotten there, and the stream is read again.

A hidden id is a missing one, or no element of its list; whatever else its record says is learned.
"""

# N samples, C categorical features, M elements of a list, T texts
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from springtide_client.features import Features, IdStrings, Ragged
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

from stream.columns import Columns
from stream.positions import Partition, Position


@dataclass(frozen=True)
class Erasure:
    """Keys, (feature number, id), and how far the stream was learned when they were forgotten."""

    keys: tuple[tuple[int, int], ...]
    until: Mapping[Partition, Position]

    def affects_replay_from(self, positions: Mapping[Partition, Position]) -> bool:
        """Whether reading on from these positions meets a record from before it."""
        return any(
            (at := positions.get(partition)) is None or (at.matches_topic(end.topic_id) and at.offset < end.offset)
            for partition, end in self.until.items()
            if end.offset > 0
        )


class ErasureFilter:
    """Takes ids out of decoded columns, exactly where their records lie before the forgetting.

    Their texts go too. They count as told, so before what may bring such an id again all texts
    must: see `needs_string_replay`.
    """

    def __init__(self, schema: Schema, forgettings: Sequence[Erasure]) -> None:
        self._categorical = [schema.number(name) for name in schema.categorical]
        self._lists = [schema.number(name) for name in schema.lists]
        self._owes_text = False
        self._forgettings = [(forgetting.until, _by_feature(forgetting)) for forgetting in forgettings]

    def needs_string_replay(self, at: Partition, end: int) -> bool:
        """Whether records of the partition up to this offset may bring an id whose text was hidden. Told once."""
        owes = self._owes_text and any(end > (until[at].offset if at in until else 0) for until, _ in self._forgettings)
        self._owes_text = self._owes_text and not owes
        return owes

    def apply(self, columns: Columns, at: Partition, topic_id: str) -> Columns:
        """The columns of one partition without what is hidden."""
        num_texts = len(columns.id_strings.strings)
        for until, ids in self._forgettings:
            end = until.get(at)
            if end is None or not end.matches_topic(topic_id) or not len(columns):
                continue
            early_N = columns.offset_N < end.offset
            if early_N.any():
                columns = replace(columns, features=self._without(columns.features, ids, early_N))
                columns = replace(columns, id_strings=self._told_of(columns, ids))
        self._owes_text |= len(columns.id_strings.strings) < num_texts
        return columns

    def _without(
        self, features: Features, ids: dict[int, npt.NDArray[np.int64]], early_N: npt.NDArray[np.bool_]
    ) -> Features:
        categorical_NC, lists = features.categorical_NC.copy(), []
        for c, feature in enumerate(self._categorical):
            if feature in ids:
                categorical_NC[early_N & np.isin(categorical_NC[:, c], ids[feature]), c] = MISSING_ID
        for feature, ragged in zip(self._lists, features.lists, strict=True):
            if feature in ids:
                lengths_N = np.diff(ragged.offsets)
                kept_M = ~(np.repeat(early_N, lengths_N) & np.isin(ragged.ids_M, ids[feature]))
                offsets = np.concatenate([[0], np.cumsum(kept_M)]).astype(np.int64)[ragged.offsets]
                ragged = Ragged(ragged.ids_M[kept_M], offsets)
            lists.append(ragged)
        return replace(features, categorical_NC=categorical_NC, lists=tuple(lists))

    def _told_of(self, columns: Columns, ids: dict[int, npt.NDArray[np.int64]]) -> IdStrings:
        """The texts, but for those of ids that are nowhere in the columns any more."""
        texts = columns.id_strings
        if not texts.strings:
            return texts
        kept_T = np.ones(len(texts.strings), np.bool_)
        for feature, forgotten in ids.items():
            mine_T = (texts.features == feature) & np.isin(texts.ids, forgotten)
            kept_T &= ~mine_T | np.isin(texts.ids, self._present(columns.features, feature))
        return IdStrings(texts.features[kept_T], texts.ids[kept_T], [texts.strings[t] for t in np.flatnonzero(kept_T)])

    def _present(self, features: Features, feature: int) -> npt.NDArray[Any]:
        parts = [features.categorical_NC[:, c] for c, number in enumerate(self._categorical) if number == feature]
        parts += [ragged.ids_M for number, ragged in zip(self._lists, features.lists, strict=True) if number == feature]
        return np.concatenate(parts)


def _by_feature(forgetting: Erasure) -> dict[int, npt.NDArray[np.int64]]:
    features = {feature for feature, _ in forgetting.keys}
    return {f: np.array([row_id for feature, row_id in forgetting.keys if feature == f], np.int64) for f in features}
