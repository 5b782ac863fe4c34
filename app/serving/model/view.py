"""The protocol of a model at one version, as the routes use it; ServedView implements it."""

# K keys, D dimension, N samples, L labels
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from springtide.app.serving.model.part import Part
from springtide_client.features import Features
from springtide_client.model.view import View
from springtide_client.rows.row_layer import RowLayer
from springtide_client.schema import Schema

IdArray = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.float32]
StatusArray = npt.NDArray[np.uint8]


class ModelView(Protocol):
    """An immutable model: all answers of one view are of one version."""

    @property
    def version(self) -> int: ...

    @property
    def complete_until_ms(self) -> int:
        """Every record readable at this wall time is in the version; 0 if the stream was never read to its end."""

    @property
    def schema(self) -> Schema: ...

    def dim_of(self, number: int) -> int:
        """The length of a row of this feature."""

    @property
    def feature_numbers(self) -> Mapping[str, int]:
        """The numbers in keys of the id features, by name."""

    @property
    def client_view(self) -> View:
        """The client's view behind this one, with rows of other servers where those are known."""

    @property
    def own_view(self) -> View:
        """The client's view of the rows that this server holds."""

    @property
    def part(self) -> Part:
        """Which rows this server holds."""

    def lookup(self, number: int, ids_K: IdArray) -> tuple[RowArray, StatusArray]:
        """Rows [K, D] of one feature, NaN where there is none, and status codes [K]."""

    def lookup_packed(self, number: int, ids_K: IdArray) -> StatusArray:
        """The result of `lookup` in one array of bytes: K rows of D float32, then K status codes."""

    def lookup_everywhere(self, number: int, ids_K: IdArray) -> tuple[RowArray, StatusArray]:
        """The same with rows of other servers, also where this one is no router. PartError if they cannot be had."""

    def row_info(self, number: int, row_id: int) -> tuple[int, int]:
        """(count, last seen in ms) of a known row."""

    def predict(self, features: Features) -> tuple[npt.NDArray[np.float32], StatusArray]:
        """Probabilities [N, L], and the status [K] of every row they used, in the order of `lookup_keys`."""

    def has_id_strings(self, number: int) -> bool:
        """Return True if ids of the feature are hashes of strings."""

    def id_texts(self, number: int, ids_K: IdArray) -> list[str | None]:
        """The string of each id that is the hash of one; None where it is a number."""

    def layers_of(self, number: int) -> Sequence[RowLayer]:
        """Rows of the feature and of others, newest layer first; a row or tombstone hides its key in older layers."""

    def expiry_cutoff_ms(self, number: int) -> int:
        """Rows of the feature last seen before this time have expired."""
