"""What the routes ask of a model at one version; app/serving/model/log_follower.py gives it by the client's View."""

# K keys, D dimension, N samples, L labels, R rows
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from springtide_client.features import Features
from springtide_client.rows.layers import RowLayer
from springtide_client.schema import Schema

IdArray = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.float32]
StatusArray = npt.NDArray[np.uint8]


class ModelView(Protocol):
    """An immutable model: every answer of one view is of one version."""

    @property
    def version(self) -> int: ...

    @property
    def complete_until_ms(self) -> int:
        """Every record readable at that wall time is in the version; 0 where that was never so."""

    @property
    def schema(self) -> Schema: ...

    @property
    def dim(self) -> int: ...

    @property
    def feature_numbers(self) -> Mapping[str, int]:
        """The id features and their numbers in keys."""

    def lookup(self, number: int, ids_K: IdArray) -> tuple[RowArray, StatusArray]:
        """Rows [K, D] of one feature, NaN where there is none, and their status codes [K]."""

    def lookup_packed(self, number: int, ids_K: IdArray) -> StatusArray:
        """The same in one array of bytes: K rows of D float32, then K status codes."""

    def row_info(self, number: int, row_id: int) -> tuple[int, int]:
        """Count and last seen (ms) of a known row."""

    def predict(self, features: Features) -> tuple[npt.NDArray[np.float32], StatusArray]:
        """Probabilities [N, L], and the status [K] of the rows they rest on, in the order of `lookup_keys`."""

    def has_id_strings(self, number: int) -> bool:
        """Whether ids of the feature are hashes of texts."""

    def display_ids(self, number: int, ids_K: IdArray) -> list[int | str]:
        """The ids as people know them: the text where the id is a hash."""

    @property
    def layers(self) -> Sequence[RowLayer]:
        """Rows of all features, the newest layer first: what it has of a key, row or mark, hides what lies below."""

    def expiry_cutoff_ms(self, number: int) -> int:
        """Rows of the feature that were last seen before are dead."""
