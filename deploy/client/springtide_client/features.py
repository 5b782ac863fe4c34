"""Encoded features of samples, as numpy arrays: ids, lists of ids, numbers."""

# N samples, C categorical features, F dense features, M elements of all lists of one feature
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from springtide_client.array_types import BoolArray, Float32Array, Int64Array, UInt16Array


@dataclass(frozen=True)
class Ragged:
    """One list of ids per sample: sample n has ids_M[offsets[n]:offsets[n + 1]]; offsets is int64 (N + 1).

    `weights_M`: of a weighted feature, the weight of each id in its list, finite.
    """

    ids_M: Int64Array
    offsets: Int64Array
    weights_M: Float32Array | None = None

    def slice(self, start: int, stop: int) -> "Ragged":
        """Return the lists of samples start to stop, as views."""
        first, last = self.offsets[start], self.offsets[stop]
        weights_M = None if self.weights_M is None else self.weights_M[first:last]
        return Ragged(self.ids_M[first:last], self.offsets[start : stop + 1] - first, weights_M)

    def take(self, rows_N: Int64Array) -> "Ragged":
        """Return copies of the lists of these samples, in that order."""
        starts_N, lengths_N = self.offsets[rows_N], np.diff(self.offsets)[rows_N]
        offsets = np.zeros(len(rows_N) + 1, np.int64)
        np.cumsum(lengths_N, out=offsets[1:])
        elements_M = np.repeat(starts_N - offsets[:-1], lengths_N) + np.arange(offsets[-1])
        weights_M = None if self.weights_M is None else self.weights_M[elements_M]
        return Ragged(self.ids_M[elements_M], offsets, weights_M)

    def repeat(self, num_samples: int) -> "Ragged":
        """Return the list of the only sample, as many times."""
        weights_M = None if self.weights_M is None else np.tile(self.weights_M, num_samples)
        offsets = len(self.ids_M) * np.arange(num_samples + 1)
        return Ragged(np.tile(self.ids_M, num_samples), offsets, weights_M)

    def keep(self, kept_M: BoolArray) -> "Ragged":
        """Return the lists without the elements that are not kept."""
        offsets = np.concatenate([[0], np.cumsum(kept_M)]).astype(np.int64)[self.offsets]
        weights_M = None if self.weights_M is None else self.weights_M[kept_M]
        return Ragged(self.ids_M[kept_M], offsets, weights_M)

    @staticmethod
    def concatenate(parts: Sequence["Ragged"]) -> "Ragged":
        """Return the lists of all parts, in order; at least one part. All parts have weights, or none has."""
        lengths_N = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.zeros(len(lengths_N) + 1, np.int64)
        np.cumsum(lengths_N, out=offsets[1:])
        weights = [part.weights_M for part in parts if part.weights_M is not None]
        if weights and len(weights) < len(parts):
            raise ValueError("some lists have weights and others have none")
        weights_M = np.concatenate(weights) if weights else None
        return Ragged(np.concatenate([part.ids_M for part in parts]), offsets, weights_M)


@dataclass(frozen=True)
class Features:
    """The features of N samples, in the schema's order."""

    categorical_NC: Int64Array  # ids; a missing one is keys.MISSING_ID
    lists: tuple[Ragged, ...]  # schema.lists: multi_value, then sequence; a missing one is empty
    dense_NF: Float32Array  # raw numbers, untransformed; NaN where missing
    bias_NB: Int64Array | None = None  # ids of schema.bias; None: what is served

    def __len__(self) -> int:
        return len(self.categorical_NC)

    def slice(self, start: int, stop: int) -> "Features":
        """Return samples start to stop, as views."""
        lists = tuple(ragged.slice(start, stop) for ragged in self.lists)
        bias_NB = None if self.bias_NB is None else self.bias_NB[start:stop]
        return Features(self.categorical_NC[start:stop], lists, self.dense_NF[start:stop], bias_NB)

    def take(self, rows_N: Int64Array) -> "Features":
        """Return copies of these samples, in that order."""
        lists = tuple(ragged.take(rows_N) for ragged in self.lists)
        bias_NB = None if self.bias_NB is None else self.bias_NB[rows_N]
        return Features(self.categorical_NC[rows_N], lists, self.dense_NF[rows_N], bias_NB)

    @staticmethod
    def concatenate(parts: Sequence["Features"]) -> "Features":
        """Return the samples of all parts, in order; at least one part. A single part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        biases = [part.bias_NB for part in parts if part.bias_NB is not None]
        assert len(biases) in (0, len(parts))
        return Features(
            np.concatenate([part.categorical_NC for part in parts]),
            tuple(Ragged.concatenate(lists) for lists in zip(*(part.lists for part in parts), strict=True)),
            np.concatenate([part.dense_NF for part in parts]),
            None if len(biases) < len(parts) else np.concatenate(biases),
        )


@dataclass(frozen=True)
class IdStrings:
    """Strings of hashed ids: (feature number, id, string). Each comes at least once before its row can be learned."""

    features: UInt16Array
    ids: Int64Array
    strings: list[str]

    @staticmethod
    def concatenate(parts: Sequence["IdStrings"]) -> "IdStrings":
        """Return the strings of all parts, in order; at least one part."""
        return IdStrings(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.ids for part in parts]),
            [string for part in parts for string in part.strings],
        )
