"""The rows of a version as its model sees them: of all features, whatever tables they live in, never NaN."""

# K keys, M of them in one table, D dimension, C crosses, L labels
from collections.abc import Mapping

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.keys import CROSSES
from springtide_client.model.view_table import ViewTable, WideKeys
from springtide_client.rows.search import KNOWN, FoundStates
from springtide_client.rows.table_names import MAIN_TABLE, TableNames
from springtide_client.schema import Schema
from springtide_client.wide.layout import COLUMNS_OF_A_LABEL, INFORMATION, WEIGHT

CROSSES_1 = np.array([CROSSES], np.uint16)


class ModelRows:
    """Looks up rows of D numbers; those of narrower tables end in zeros."""

    def __init__(
        self, tables: Mapping[str, ViewTable], names: TableNames, dim: int, only_table: ViewTable | None
    ) -> None:
        """`only_table`: the one that holds the rows of all features; None if there are several."""
        self._tables, self._names, self._dim, self._only_table = tables, names, dim, only_table

    @staticmethod
    def of(tables: Mapping[str, ViewTable], names: TableNames, dim: int, schema: Schema) -> "ModelRows":
        """Find out where the features' rows are, those of the bins of dense ones included."""
        numbers = [schema.number(name) for name in schema.features]
        numbers += [schema.dense_number(name) for name in schema.dense]
        used = {names.name_of(number) for number in numbers} or {MAIN_TABLE}
        first = tables[used.pop()]
        return ModelRows(tables, names, dim, first if not used and first.dim == dim else None)

    def __call__(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return rows float32 (K, D) and status uint8 (K): see View.rows_for_model."""
        if self._only_table is not None:
            return self._only_table.rows_for_model(features_K, ids_K)
        rows_KD, status_K = np.zeros((len(ids_K), self._dim), np.float32), np.empty(len(ids_K), np.uint8)
        places_K = self._names.places(features_K)
        for place in np.unique(places_K).tolist():
            at_M, table = np.flatnonzero(places_K == place), self._tables[self._names.names[place]]
            rows_KD[at_M, : table.dim], status_K[at_M] = table.rows_for_model(features_K[at_M], ids_K[at_M])
        return rows_KD, status_K

    def wide_rows(self, features_K: UInt16Array, ids_K: Int64Array) -> WideKeys:
        """Return the same rows with what the wide part knows of them."""
        if self._only_table is not None:
            return self._only_table.wide_rows(features_K, ids_K)
        places_K = self._names.places(features_K)
        used = [self._tables[self._names.names[place]] for place in np.unique(places_K).tolist() or [0]]
        num_keys, (wide_width, *_) = len(ids_K), {table.spec.wide_width for table in used}
        row_features_K, row_ids_K = np.empty(num_keys, np.uint16), np.empty(num_keys, np.int64)
        rows_KD, status_K = np.zeros((num_keys, self._dim), np.float32), np.empty(num_keys, np.uint8)
        states_KW, counts_K = np.empty((num_keys, wide_width), np.float32), np.empty(num_keys, np.int64)
        for table in used:
            at_M = np.flatnonzero(self._names.holds(table.name, features_K))
            row_features_K[at_M], row_ids_K[at_M], found = table.wide_rows(features_K[at_M], ids_K[at_M])
            rows_KD[at_M, : table.dim], status_K[at_M] = found.rows_KD, found.status_K
            states_KW[at_M], counts_K[at_M] = found.states_KW, found.counts_K
        return WideKeys(row_features_K, row_ids_K, FoundStates(rows_KD, status_K, states_KW, counts_K))

    def cross_rows(self, ids_C: Int64Array) -> Float32Array:
        """Return weight and information of each cross for label 0, then 1, ..., (C, 2 L); zeros without a row."""
        table = self._tables[self._names.name_of(CROSSES)]
        if not table.spec.wide_width:
            values_C2L, status_C = table.search(CROSSES_1, ids_C)
            values_C2L[status_C != KNOWN] = 0
            return values_C2L
        columns_CW = table.search.with_states(CROSSES_1, ids_C).states_KW
        firsts = np.arange(0, columns_CW.shape[1] - 1, COLUMNS_OF_A_LABEL)
        return columns_CW[:, np.stack([firsts + WEIGHT, firsts + INFORMATION], axis=1).reshape(-1)]
