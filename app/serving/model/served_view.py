"""The client's View as the routes see it: with compiled lookups, and with the strings behind its ids."""

# K keys, D dimension
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from springtide.app.serving.model.id_dictionary import LiveIdDictionary
from springtide.app.serving.model.live_items import LiveItems
from springtide.app.serving.model.part import WHOLE, Part
from springtide.app.serving.model.view import IdArray, RowArray, StatusArray
from springtide.kernels.cpu.serving.layer_search import LayerSearch
from springtide_client.features import Features
from springtide_client.keys import INT64_MIN
from springtide_client.model.view import View
from springtide_client.parts.parted_search import PartedSearch
from springtide_client.rows.row_layer import RowLayer
from springtide_client.schema import Schema


class ServedView:
    """Implements ModelView; its docstrings say what each method returns."""

    def __init__(self, own_view: View, id_strings: LiveIdDictionary, items: LiveItems, part: Part = WHOLE) -> None:
        """`own_view` holds the rows of `part`. `items` are those of the log's versions, of a model with two towers."""
        self.own_view, self.part = own_view, part
        self.client_view = part.joined(own_view)
        # other servers are asked for single rows by a router only
        self._rows_view = self.client_view if part.is_router else own_view
        self._id_strings = id_strings
        self.items = items

    @property
    def version(self) -> int:
        return self.client_view.version

    @property
    def complete_until_ms(self) -> int:
        return self.client_view.meta.complete_until_ms

    @property
    def schema(self) -> Schema:
        return self.client_view.schema

    def dim_of(self, number: int) -> int:
        return self.client_view.table_of(number).dim

    @cached_property
    def feature_numbers(self) -> dict[str, int]:
        return {feature: self.schema.number(feature) for feature in self.schema.features}

    def lookup(self, number: int, ids_K: IdArray) -> tuple[RowArray, StatusArray]:
        return self._rows_view.lookup(feature_column(number), ids_K)

    def lookup_packed(self, number: int, ids_K: IdArray) -> StatusArray:
        search = self._rows_view.search_of(number)
        assert isinstance(search, (LayerSearch, PartedSearch))
        return search.packed(feature_column(number), ids_K)

    def lookup_everywhere(self, number: int, ids_K: IdArray) -> tuple[RowArray, StatusArray]:
        return self.client_view.lookup(feature_column(number), ids_K)

    def row_info(self, number: int, row_id: int) -> tuple[int, int]:
        return self.client_view.table_of(number).count_and_last_seen(number, row_id)

    def predict(self, features: Features) -> tuple[npt.NDArray[np.float32], StatusArray]:
        return self.client_view.predict_with_status(features)

    def has_id_strings(self, number: int) -> bool:
        return self._id_strings.has_strings(self.client_view.base, number)

    def id_texts(self, number: int, ids_K: IdArray) -> list[str | None]:
        return self._id_strings.find(self.client_view.base, number, ids_K)

    def layers_of(self, number: int) -> Sequence[RowLayer]:
        return self.client_view.table_of(number).all_layers

    def expiry_cutoff_ms(self, number: int) -> int:
        return self.client_view.meta.expiry_cutoffs.get(str(number), INT64_MIN)


@lru_cache(maxsize=1_024)
def feature_column(number: int) -> npt.NDArray[np.uint16]:
    """One feature number that applies to all ids of a lookup."""
    return np.array([number], np.uint16)
