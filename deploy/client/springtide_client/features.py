"""Encoded features of some samples: what a model needs of a record once its texts are ids. Plain numpy arrays."""

# N samples, C categorical features, F dense features, M elements of all lists of one feature
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Ragged:
    """Lists of ids, one a sample: sample n's are ids_M[offsets[n]:offsets[n + 1]]; offsets int64 (N + 1)."""

    ids_M: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Features:
    """The features of N samples, in the schema's order."""

    categorical_NC: npt.NDArray[np.int64]  # ids; a missing one is keys.MISSING_ID
    lists: tuple[Ragged, ...]  # schema.lists: multi_value, then sequence; a missing list is empty
    dense_NF: npt.NDArray[np.float32]  # raw numbers, untransformed; NaN where missing

    def __len__(self) -> int:
        return len(self.categorical_NC)


@dataclass(frozen=True)
class IdStrings:
    """Texts behind hashed ids: (feature number, id, text), each at least once before a row of it can be learned."""

    features: npt.NDArray[np.uint16]
    ids: npt.NDArray[np.int64]
    strings: list[str]
