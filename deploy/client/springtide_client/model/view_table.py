"""The rows of one table at one version: those of a base, and the layers of changed rows over them. Immutable."""

# K keys, M some of them, D dimension, W numbers of the wide part, C crosses, L labels
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import BoolArray, Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.format.records import VersionMeta
from springtide_client.keys import CROSSES, SHARED_ROW_OFFSET, hash_keys
from springtide_client.log.base import Base, TableSpec
from springtide_client.rows.admission_counts import AdmissionCounts
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.rows.initial_values import initial_values
from springtide_client.rows.layers import LayerMerge, merge_layers, record_layer
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.search import KNOWN, UNKNOWN, FoundStates, LayerStack, RowSearch, SearchFactory
from springtide_client.rows.table_names import MAIN_TABLE, TableNames
from springtide_client.schema import Schema
from springtide_client.wide.layout import COLUMNS_OF_A_LABEL, INFORMATION, WEIGHT

# layers are merged once there are more than MAX_UNMERGED_LAYERS; then each is at least LAYER_RATIO times as long as the
# one above it
MAX_UNMERGED_LAYERS, LAYER_RATIO = 4, 4


class WideKeys(NamedTuple):
    """The rows of some keys for the wide part, and the keys that these rows have: shared rows have their own."""

    features_K: UInt16Array
    ids_K: Int64Array
    found: FoundStates  # without NaN


@dataclass(frozen=True)
class ViewTable:
    """One table of a View. `apply` and `merged` return new ones and leave this one unchanged."""

    name: str
    spec: TableSpec
    base_rows: RowBlock
    layers: tuple[RowBlock, ...]  # rows changed and tombstones since the base, newest first
    disk_layer: RowBlock | None  # older ones, moved to a mapped file
    # of the version, for all tables
    meta: VersionMeta
    admission_counts: AdmissionCounts  # of ids without a row
    search_factory: SearchFactory
    hash_range: HashRange = ALL_KEYS  # whose rows it holds
    merge: LayerMerge = merge_layers

    @staticmethod
    def of(
        base: Base,
        name: str,
        counts: AdmissionCounts,
        search_factory: SearchFactory,
        merge: LayerMerge = merge_layers,
    ) -> "ViewTable":
        """Return a table of a base."""
        spec = base.manifest.all_tables[name]
        rows = base.tables[name].rows
        if spec.wide_width:
            rows = with_wide_columns(base.tables[name].layer, spec)
        return ViewTable(name, spec, rows, (), None, base.manifest.meta, counts, search_factory, base.hash_range, merge)

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self.spec.dim

    @property
    def layer_bytes(self) -> int:
        """The memory of the layers. Mapped files are not included."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def num_changed_rows(self) -> int:
        """The rows and tombstones in the layers over the base, in memory and on disk."""
        return sum(map(len, self.layers)) + (0 if self.disk_layer is None else len(self.disk_layer))

    @property
    def changed_layers(self) -> tuple[RowBlock, ...]:
        """The layers over the base's rows, newest first."""
        return self.layers if self.disk_layer is None else (*self.layers, self.disk_layer)

    @property
    def all_layers(self) -> tuple[RowBlock, ...]:
        """The layers and the base's rows, newest first, without empty ones."""
        return tuple(layer for layer in (*self.changed_layers, self.base_rows) if len(layer))

    @cached_property
    def search(self) -> RowSearch:
        """The search over these rows."""
        return self.search_factory(self._stack)

    @property
    def _stack(self) -> LayerStack:
        meta = self.meta
        return LayerStack(
            self.all_layers,
            self.dim,
            meta.expiry_cutoffs,
            meta.admission,
            self.admission_counts,
            meta.sketch_age,
            self.name,
            self.spec.wide_width,
        )

    def count_and_last_seen(self, feature: int, row_id: int) -> tuple[int, int]:
        """Return how often a known row was seen, and the event time in ms at which it was seen last."""
        features_1, ids_1 = np.array([feature], np.uint16), np.array([row_id], np.int64)
        found = ((layer, int(layer.find(features_1, ids_1)[0])) for layer in self.all_layers)
        layer, row = next((layer, row) for layer, row in found if row >= 0)
        return int(layer.count[row]), int(layer.last_seen[row])

    def rows_for_model(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return the rows that a model sees, as View.rows_for_model does, of keys that live in this table."""
        rows_KD, status_K = self.search(features_K, ids_K)
        missing_M = np.flatnonzero(status_K)
        if len(missing_M):
            is_shared_M, features_M, ids_M = self._row_keys(
                features_K[missing_M], ids_K[missing_M], status_K[missing_M]
            )
            rows_MD = self._initial_values(features_M, ids_M)
            if is_shared_M.any():
                found_MD, status_M = self.search(features_M, ids_M)
                known_M = status_M == KNOWN
                rows_MD[known_M] = found_MD[known_M]
            rows_KD[missing_M] = rows_MD
        return rows_KD, status_K

    def wide_rows(self, features_K: UInt16Array, ids_K: Int64Array) -> WideKeys:
        """Return the same rows with what the wide part knows of them, of keys that live in this table."""
        found = self.search.with_states(features_K, ids_K)
        missing_M = np.flatnonzero(found.status_K)
        if len(missing_M):
            features_K, ids_K = features_K.copy(), ids_K.copy()
            status_M = found.status_K[missing_M]
            is_shared_M, features_M, ids_M = self._row_keys(features_K[missing_M], ids_K[missing_M], status_M)
            features_K[missing_M], ids_K[missing_M] = features_M, ids_M
            rows_MD = self._initial_values(features_M, ids_M)
            if is_shared_M.any():
                shared = self.search.with_states(features_M, ids_M)
                known_M = shared.status_K == KNOWN
                rows_MD[known_M] = shared.rows_KD[known_M]
                found.states_KW[missing_M], found.counts_K[missing_M] = shared.states_KW, shared.counts_K
            found.rows_KD[missing_M] = rows_MD
        return WideKeys(features_K, ids_K, found)

    def _row_keys(
        self, features_M: UInt16Array, ids_M: Int64Array, status_M: UInt8Array
    ) -> tuple[BoolArray, UInt16Array, Int64Array]:
        """Return the keys of the rows that a model sees for keys without one of their own, and which are shared."""
        is_shared_M = self._shares(features_M, ids_M, status_M)
        return (
            is_shared_M,
            np.where(is_shared_M, features_M + np.uint16(SHARED_ROW_OFFSET), features_M),
            np.where(is_shared_M, 0, ids_M),
        )

    def _shares(self, features_M: UInt16Array, ids_M: Int64Array, status_M: UInt8Array) -> BoolArray:
        """Return which keys without a row would not get one if the trainer saw them now, once: they share a row."""
        is_shared_M = np.zeros(len(ids_M), np.bool_)
        for feature, min_count in self.meta.admission.items():
            at_J = np.flatnonzero(features_M == int(feature))
            if len(at_J) == 0 or min_count <= 1:
                continue
            seen_J = np.zeros(len(at_J), np.int64)
            asked = np.flatnonzero(status_M[at_J] != UNKNOWN)  # unknown ones were never counted
            key_hash = hash_keys(features_M[at_J[asked]], ids_M[at_J[asked]])
            seen_J[asked] = self.admission_counts.estimates(key_hash, self.meta.sketch_age)
            is_shared_M[at_J] = seen_J + 1 < min_count
        return is_shared_M

    def _initial_values(self, features_M: UInt16Array, ids_M: Int64Array) -> Float32Array:
        spec = self.spec
        return initial_values(features_M, ids_M, dim=spec.dim, seed=spec.seed, scale=spec.init_scale, dtype=spec.dtype)

    def apply(
        self,
        tensors: Mapping[str, npt.NDArray[Any]],
        meta: VersionMeta,
        counts: AdmissionCounts,
        table_names: TableNames,
    ) -> "ViewTable":
        """Return the table at the next version, whose record holds these tensors."""
        spec = self.spec
        state_width = spec.state_width if spec.wide_width else 0
        layer = record_layer(tensors, spec.dim, state_width, tables=table_names, table=self.name)
        if not self.hash_range.is_all:
            # copied: views of the record would keep all of it in memory
            layer = self.hash_range.select(layer)
            layer = (with_wide_columns(layer, spec) if spec.wide_width else layer).copied()
        elif spec.wide_width:
            layer = with_wide_columns(layer, spec)
            layer = replace(layer, state=np.ascontiguousarray(layer.state))  # else it keeps the optimizer's too
        layers = (layer, *self.layers) if len(layer) else self.layers
        return replace(self, layers=layers, meta=meta, admission_counts=counts)

    def merged(self, counts: AdmissionCounts) -> "ViewTable":
        """Return the same rows in fewer layers, with the counts of the version in fewer layers too."""
        layers = list(reversed(self.layers))  # oldest first: a stack
        start = len(layers) if len(layers) > MAX_UNMERGED_LAYERS else 0
        while start > 1 and len(layers[start - 2]) < LAYER_RATIO * sum(len(layer) for layer in layers[start - 1 :]):
            start -= 1
        if start == 0 or start > len(layers) - 1:
            return self if counts is self.admission_counts else replace(self, admission_counts=counts)
        top = self.merge(*layers[start - 1 :])
        return replace(self, layers=(top, *reversed(layers[: start - 1])), admission_counts=counts)


def with_wide_columns(layer: RowBlock, spec: TableSpec) -> RowBlock:
    """Return the layer with only the wide part's numbers as its states, float32 (n, W); those of optimizers go."""
    return replace(layer, state=layer.state[:, spec.state_width - spec.wide_width :])


CROSSES_1 = np.array([CROSSES], np.uint16)


class ModelRows:
    """The rows of a version as its model sees them: of all features, whatever tables they live in, never NaN.

    Rows of narrower tables end in zeros.
    """

    def __init__(
        self, tables: Mapping[str, ViewTable], names: TableNames, dim: int, only_table: ViewTable | None
    ) -> None:
        """`only_table`: the one that holds the rows of all features; None if there are several."""
        self._tables, self._names, self._dim, self._only_table = tables, names, dim, only_table

    @staticmethod
    def of(tables: Mapping[str, ViewTable], names: TableNames, dim: int, schema: Schema) -> "ModelRows":
        """Find out where the features' rows are, those of bins and of bias fields included."""
        numbers = [schema.number(name) for name in schema.features]
        numbers += [*schema.dense_numbers, *schema.bias_numbers]
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
