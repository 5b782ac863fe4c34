"""Encoded features of some samples: what a model needs of a record once its texts are ids. Plain numpy arrays."""

# N samples, C categorical features, F dense features, M elements of all lists of one feature
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Ragged:
    """Lists of ids, one a sample: sample n's are ids_M[offsets[n]:offsets[n + 1]]; offsets int64 (N + 1)."""

    ids_M: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    def slice(self, start: int, stop: int) -> "Ragged":
        """The lists of samples start to stop, as views."""
        first, last = self.offsets[start], self.offsets[stop]
        return Ragged(self.ids_M[first:last], self.offsets[start : stop + 1] - first)

    @staticmethod
    def concatenate(parts: Sequence["Ragged"]) -> "Ragged":
        """The lists of all parts, in order; at least one part."""
        lengths_N = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.zeros(len(lengths_N) + 1, np.int64)
        np.cumsum(lengths_N, out=offsets[1:])
        return Ragged(np.concatenate([part.ids_M for part in parts]), offsets)


@dataclass(frozen=True)
class Features:
    """The features of N samples, in the schema's order."""

    categorical_NC: npt.NDArray[np.int64]  # ids; a missing one is keys.MISSING_ID
    lists: tuple[Ragged, ...]  # schema.lists: multi_value, then sequence; a missing list is empty
    dense_NF: npt.NDArray[np.float32]  # raw numbers, untransformed; NaN where missing

    def __len__(self) -> int:
        return len(self.categorical_NC)

    def slice(self, start: int, stop: int) -> "Features":
        """Samples start to stop, as views."""
        lists = tuple(ragged.slice(start, stop) for ragged in self.lists)
        return Features(self.categorical_NC[start:stop], lists, self.dense_NF[start:stop])

    @staticmethod
    def concatenate(parts: Sequence["Features"]) -> "Features":
        """The samples of all parts, in order; at least one part. A single part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        return Features(
            np.concatenate([part.categorical_NC for part in parts]),
            tuple(Ragged.concatenate(lists) for lists in zip(*(part.lists for part in parts), strict=True)),
            np.concatenate([part.dense_NF for part in parts]),
        )


@dataclass(frozen=True)
class IdStrings:
    """Texts behind hashed ids: (feature number, id, text), each at least once before a row of it can be learned."""

    features: npt.NDArray[np.uint16]
    ids: npt.NDArray[np.int64]
    strings: list[str]

    @staticmethod
    def concatenate(parts: Sequence["IdStrings"]) -> "IdStrings":
        """The strings of all parts, in order; at least one part."""
        return IdStrings(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.ids for part in parts]),
            [string for part in parts for string in part.strings],
        )
