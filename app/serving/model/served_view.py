"""The client's View as the routes see it: with compiled lookups, and with the strings behind its ids."""

# K keys, D dimension, N samples, L labels
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from springtide.app.serving.model.live_ids import LiveIdDictionary, LiveItems
from springtide.app.serving.model.part import WHOLE, Part
from springtide.kernels.cpu.serving.layer_search import LayerSearch
from springtide_client.array_types import Float32Array, Int64Array, UInt8Array
from springtide_client.features import Features
from springtide_client.keys import INT64_MIN
from springtide_client.model.view import View
from springtide_client.parts.parted_view import PartedSearch
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema


class ServedView:
    """An immutable model: all answers of one view are of one version. Features are their numbers in keys."""

    def __init__(self, own_view: View, id_strings: LiveIdDictionary, items: LiveItems, part: Part = WHOLE) -> None:
        """`own_view` holds the rows of `part`. `items` are those of the log's versions, of a model with two towers."""
        self.own_view, self.part = own_view, part
        self.version = own_view.version
        # with rows of other servers where those are known
        self.client_view = part.joined(own_view)
        # other servers are asked for single rows by a router only
        self._rows_view = self.client_view if part.is_router else own_view
        self._id_strings = id_strings
        self.items = items

    @property
    def complete_until_ms(self) -> int:
        """Every record readable at this wall time is in the version; 0 if the stream was never read to its end."""
        return self.own_view.meta.complete_until_ms

    @property
    def schema(self) -> Schema:
        """The features, their order and the labels."""
        return self.own_view.schema

    def dim_of(self, feature: int) -> int:
        """Return the length of a row of a feature."""
        return self.client_view.table_of(feature).dim

    @cached_property
    def feature_numbers(self) -> Mapping[str, int]:
        """The numbers in keys of the id features, by name."""
        return {name: self.schema.number(name) for name in self.schema.features}

    def lookup(self, feature: int, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return rows [K, D] of one feature, NaN where there is none, and status codes [K]."""
        return self._rows_view.lookup(feature_column(feature), ids_K)

    def lookup_packed(self, feature: int, ids_K: Int64Array) -> UInt8Array:
        """Return the result of `lookup` in one array of bytes: K rows of D float32, then K status codes."""
        search = self._rows_view.search_of(feature)
        assert isinstance(search, (LayerSearch, PartedSearch))
        return search.packed(feature_column(feature), ids_K)

    def lookup_everywhere(self, feature: int, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return what `lookup` does with rows of other servers, also where this one is no router. PartError."""
        return self.client_view.lookup(feature_column(feature), ids_K)

    def row_info(self, feature: int, row_id: int) -> tuple[int, int]:
        """Return (count, last seen in ms) of a known row."""
        return self.client_view.table_of(feature).count_and_last_seen(feature, row_id)

    def predict(self, features: Features) -> tuple[npt.NDArray[np.float32], UInt8Array]:
        """Return probabilities [N, L], and the status [K] of every row they used, in the order of `lookup_keys`."""
        return self.client_view.predict_with_status(features)

    def has_id_strings(self, feature: int) -> bool:
        """Return True if ids of the feature are hashes of strings."""
        return self._id_strings.has_strings(self.client_view.base, feature)

    def id_texts(self, feature: int, ids_K: Int64Array) -> list[str | None]:
        """Return the string of each id that is the hash of one; None where it is a number."""
        return self._id_strings.find(self.client_view.base, feature, ids_K)

    def layers_of(self, feature: int) -> Sequence[RowBlock]:
        """Return rows of the feature and of others, newest layer first; a row or tombstone hides its key in older."""
        return self.client_view.table_of(feature).all_layers

    def expiry_cutoff_ms(self, feature: int) -> int:
        """Rows of the feature last seen before this time have expired."""
        return self.client_view.meta.expiry_cutoffs.get(str(feature), INT64_MIN)


@lru_cache(maxsize=1_024)
def feature_column(feature: int) -> npt.NDArray[np.uint16]:
    """Return one feature number that applies to all ids of a lookup."""
    return np.array([feature], np.uint16)
