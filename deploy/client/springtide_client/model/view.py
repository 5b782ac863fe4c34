"""One version of a model: a mapped base, the rows changed since, the dense parameters. Immutable.

Servers and HotModel answer with the same functions, so equal versions give bitwise equal results. A view uses no files
but its base's and no threads: a follower makes views, and a call keeps the view it began with.
"""

# K keys, M some of them, D dimension, N samples, L labels
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.errors import GapError, LogError
from springtide_client.features import Features
from springtide_client.format.records import Head, Record, VersionMeta
from springtide_client.keys import INT64_MIN
from springtide_client.log.base import MODEL, Base
from springtide_client.model.inputs import ModelInputs, assemble, lookup_keys
from springtide_client.model.view_table import ModelRows, ViewTable
from springtide_client.model.wide_prediction import WidePrediction, predict_wide
from springtide_client.recall import ReadNumbers, read_numbers, recall
from springtide_client.rows.admission_counts import AdmissionCounts
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.rows.layers import LayerMerge, merge_layers
from springtide_client.rows.nearest import Measure, find_nearest, measure_nearness
from springtide_client.rows.search import FORGOTTEN as FORGOTTEN
from springtide_client.rows.search import KNOWN as KNOWN
from springtide_client.rows.search import NOT_ADMITTED as NOT_ADMITTED
from springtide_client.rows.search import UNKNOWN as UNKNOWN
from springtide_client.rows.search import NumpySearch, RowSearch, SearchFactory
from springtide_client.rows.table_names import MAIN_TABLE, TableNames
from springtide_client.schema import Schema
from springtide_client.system.switch_interval import short_switch_interval
from springtide_client.targets import value_of
from springtide_client.wide.fields import WideFields
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import NUMPY_STEPS, WideSteps

if TYPE_CHECKING:
    from springtide_client.model.exported_model import ExportedModel, ModelParameters

LEAST_SHARE, MAX_PROBABILITY = 1e-3, 0.99  # what predictions are divided by, and become

STATUS_NAMES = ("known", "unknown", "not_admitted", "forgotten")


@dataclass(frozen=True)
class View:
    """One version. `apply` and `merged` return new views and leave this one unchanged."""

    base: Base
    tables: Mapping[str, ViewTable]  # the rows, by the names of their tables, the main one first
    table_names: TableNames
    dim: int  # the length of the rows that the model sees: of the widest table with an id feature
    admission_counts: AdmissionCounts  # of ids without a row
    head: Head
    parent: int  # checksum of the version before
    meta: VersionMeta
    schema: Schema
    model: "ExportedModel"
    parameters: "ModelParameters"
    wide: WideParameters | None  # where it is, the program's logits are a part of the score
    wide_steps: WideSteps = NUMPY_STEPS

    @staticmethod
    def open(
        base_path: Path,
        like: "View | None" = None,
        search_factory: SearchFactory = NumpySearch,
        wide_steps: WideSteps = NUMPY_STEPS,
        hash_range: HashRange = ALL_KEYS,
        merge: LayerMerge = merge_layers,
    ) -> "View":
        """Open a base as a view; LogError when its files do not fit together.

        The loaded program of `like` is reused when the base holds the same one. Rows outside of `hash_range` are left
        out, here and of the versions to come; the rest of a version is always whole.
        """
        from springtide_client.model.exported_model import ExportedModel  # importing torch takes a second

        base = Base.open(base_path, for_serving=True, hash_range=hash_range)
        base.advise_random_access(with_states=False)
        manifest = base.manifest
        if base.model_path is None:
            raise LogError(f"{base_path} holds no {MODEL}: it cannot be served")
        if like is not None and like.base.manifest.files.get(MODEL) == manifest.files[MODEL]:
            model = like.model
        else:
            with short_switch_interval():  # parsing a program takes 0.2 s in Python, beside calls that need the GIL
                model = ExportedModel.load(base.model_path)
        schema, table_names = manifest.decode_schema(), manifest.table_names
        counts = AdmissionCounts(manifest.meta.sketch_blocks, base.sketch)
        tables = {name: ViewTable.of(base, name, counts, search_factory, merge) for name in table_names.names}
        seen_by_model = {table_names.name_of(schema.number(name)) for name in schema.features} or {MAIN_TABLE}
        return View(
            base=base,
            tables=tables,
            table_names=table_names,
            dim=max(tables[name].dim for name in seen_by_model),
            admission_counts=counts,
            head=manifest.head,
            parent=0,
            meta=manifest.meta,
            schema=schema,
            model=model,
            parameters=model.parameters(dense_of(base.dense)),
            wide=wide_of(dense_of(base.dense), schema),
            wide_steps=wide_steps,
        )

    @property
    def version(self) -> int:
        """The version number, epoch * 2**32 + count."""
        return self.head.number

    @cached_property
    def only_table(self) -> ViewTable | None:
        """The table that holds all rows; None where there are several."""
        return self.tables[MAIN_TABLE] if len(self.tables) == 1 else None

    @cached_property
    def model_rows(self) -> ModelRows:
        """The rows as a model sees them."""
        return ModelRows.of(self.tables, self.table_names, self.dim, self.schema)

    def table_of(self, feature: int) -> ViewTable:
        """Return the table that holds the rows of a feature."""
        return self.only_table or self.tables[self.table_names.name_of(feature)]

    @property
    def num_bytes(self) -> int:
        """The memory of layers, parameters and counts. Mapped files are not included."""
        return sum(table.layer_bytes for table in self.tables.values()) + self.fixed_bytes

    @property
    def fixed_bytes(self) -> int:
        """The part of `num_bytes` that cannot move to a file: dense parameters, and blocks of the admission sketch."""
        wide_bytes = 0 if self.wide is None else sum(array.nbytes for array in self.wide)
        return self.parameters.num_bytes + self.admission_counts.num_bytes + wide_bytes

    @property
    def num_changed_rows(self) -> int:
        """The rows and tombstones in the layers over the base, in memory and on disk."""
        return sum(table.num_changed_rows for table in self.tables.values())

    def search_of(self, feature: int) -> RowSearch:
        """Return the search over the rows of the table that holds a feature."""
        return self.table_of(feature).search

    @property
    def num_rows(self) -> int:
        """The rows in the base and in the layers over it: a row that changed since counts in both."""
        return len(self.base) + self.num_changed_rows

    def prepare(self) -> None:
        """Build what lookups need, so that the first one does not wait for it."""
        for table in self.tables.values():
            _ = table.search

    def lookup(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return rows float32 (K, D), NaN where there is none, and status uint8 (K).

        0 known, 1 unknown, 2 not admitted (seen too seldom for a row), 3 forgotten. `features_K` may hold one feature
        for all ids. D is the width of their table; where it is not the same for all, shorter rows end in NaN.
        """
        table = self.only_table
        if table is None and len(features_K) == 1:
            table = self.table_of(int(features_K[0]))
        return table.search(features_K, ids_K) if table is not None else self._search_tables(features_K, ids_K)

    def _search_tables(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        places_K = self.table_names.places(features_K)
        used = [
            (np.flatnonzero(places_K == place), self.tables[self.table_names.names[place]])
            for place in np.unique(places_K).tolist()
        ]
        rows_KD = np.full((len(ids_K), max((table.dim for _, table in used), default=self.dim)), np.nan, np.float32)
        status_K = np.empty(len(ids_K), np.uint8)
        for at_M, table in used:
            rows_KD[at_M, : table.dim], status_K[at_M] = table.search(features_K[at_M], ids_K[at_M])
        return rows_KD, status_K

    def row_info(self, feature: int, row_id: int) -> dict[str, Any]:
        """Return `{"status", "vector", "count", "last_seen_ms"}` of one key; None in all but the status if no row."""
        rows_1D, status_1 = self.lookup(np.array([feature], np.uint16), np.array([row_id], np.int64))
        status = int(status_1[0])
        if status != KNOWN:
            return {"status": STATUS_NAMES[status], "vector": None, "count": None, "last_seen_ms": None}
        count, last_seen_ms = self.table_of(feature).count_and_last_seen(feature, row_id)
        return {"status": STATUS_NAMES[KNOWN], "vector": rows_1D[0], "count": count, "last_seen_ms": last_seen_ms}

    def nearest(
        self,
        feature: int,
        without_id: int,
        query_D: Float32Array,
        *,
        k: int,
        metric: str,
        measure: Measure = measure_nearness,
    ) -> tuple[Int64Array, Float32Array]:
        """Return ids and scores of the k rows of a feature that are nearest to a vector: see rows.nearest."""
        cutoff_ms = self.meta.expiry_cutoffs.get(str(feature), INT64_MIN)
        layers = self.table_of(feature).all_layers
        return find_nearest(
            layers, feature, without_id, query_D, cutoff_ms=cutoff_ms, k=k, metric=metric, measure=measure
        )

    def rows_for_model(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return the rows that a model sees, float32 (K, D) without NaN, and status uint8 (K).

        They are those that the trainer would score a sample with. An id without a row that would not be admitted yet
        gets the shared row of its feature, also one that was never seen; any other the initial value that its row would
        be created with. Rows of narrower tables end in zeros.
        """
        return self.model_rows(features_K, ids_K)

    def recalled(self, features: Features, event_ms_N: Int64Array, read: ReadNumbers = read_numbers) -> Features:
        """Return the features of the whole schema, from encoded instances and what their ids are remembered for.

        `event_ms_N`: the time of each instance, as of which it reads. `read`: as `read_numbers`, for counters.
        """
        return recall(self.schema, features, event_ms_N, self.lookup, read)

    def remembers_all(self, event_ms: int) -> bool:
        """Return True if whatever a sample of this time may read is in this version."""
        return all(self.meta.complete_until_ms >= event_ms - memory.tick_ms for memory in self.schema.remembered)

    def predict(self, features: Features) -> Float32Array:
        """Return predictions float32 (N, L) in the order of the schema's labels: probabilities, or values."""
        return self.predict_with_status(features)[0]

    def predict_with_status(self, features: Features) -> tuple[Float32Array, UInt8Array]:
        """Return predictions (N, L), and the status (K) of each key of `lookup_keys`, in its order."""
        predictions_NL, status_K = self._predict_within_windows(features)
        return divide_by_shares(self.schema, predictions_NL, self.meta.label_shares), status_K

    def _predict_within_windows(self, features: Features) -> tuple[Float32Array, UInt8Array]:
        """Return the predictions of what comes within the labels' windows, (N, L), and the status (K) of each key."""
        if self.wide is not None:
            predicted = self.predict_wide(features)
            return predictions_of(self.schema, predicted.logits_NL), predicted.status_K
        features_K, ids_K = lookup_keys(self.schema, features)
        rows_KD, status_K = self.rows_for_model(features_K, ids_K)
        inputs = assemble(self.schema, features, rows_KD)
        if self.schema.links:
            logits_NL = self.model.logits(self.parameters, inputs)
            return predictions_of(self.schema, logits_NL.astype(np.float64)), status_K
        return self.model.predict(self.parameters, inputs), status_K

    def predict_wide(self, features: Features) -> WidePrediction:
        """Return the logits of a version with a wide part."""
        assert self.wide is not None

        def net(inputs: ModelInputs) -> Float32Array:
            return self.model.logits(self.parameters, inputs)

        return predict_wide(features, self.schema, self.wide, self.wide_steps, self.model_rows, net)

    def apply(self, record: Record) -> "View":
        """Return the view of the next version; GapError if the record is not its child, or of another schema."""
        if record.parent != self.head.checksum or record.number <= self.head.number:
            raise GapError(f"version {record.number} does not follow version {self.head.number}")
        if record.meta.fingerprint != self.meta.fingerprint:
            raise GapError(f"version {record.number} was written with another schema")
        tensors = record.tensors()
        dense, meta = dense_of(tensors), record.meta
        counts = self.admission_counts.apply(tensors, meta.sketch_blocks)
        tables = {name: table.apply(tensors, meta, counts, self.table_names) for name, table in self.tables.items()}
        return replace(
            self,
            tables=tables,
            admission_counts=counts,
            head=Head(record.number, record.checksum),
            parent=record.parent,
            meta=meta,
            parameters=self.model.parameters(dense, self.parameters) if dense else self.parameters,
            wide=wide_of(dense, self.schema) or self.wide,
        )

    def merged(self) -> "View":
        """Return the same version with fewer layers. Apart from `apply`, so that serving does not wait for merging."""
        counts = self.admission_counts.merged()
        tables = {name: table.merged(counts) for name, table in self.tables.items()}
        is_same = all(table is self.tables[name] for name, table in tables.items())
        return self if is_same else replace(self, tables=tables, admission_counts=counts)


def dense_of(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the dense model's parameters without their prefix `dense.`."""
    return {name.removeprefix("dense."): array for name, array in tensors.items() if name.startswith("dense.")}


def wide_of(dense: Mapping[str, npt.NDArray[Any]], schema: Schema) -> WideParameters | None:
    """Return copies of the wide part's arrays in a version's dense tensors; None: there are none.

    LogError when some are missing, or are those of other fields than the schema's.
    """
    try:
        wide = WideParameters.of(dense)
    except KeyError as missing:
        raise LogError(f"the version lacks the array {missing} of its wide part") from None
    if wide is None:
        return None
    fields = WideFields.of(schema)
    if not np.array_equal(wide.numbers_F, fields.numbers_F) or wide.num_bias_1[0] != fields.num_bias:
        raise LogError("the wide part's arrays are of other features than the schema's")
    return WideParameters(*map(np.array, wide))


def predictions_of(schema: Schema, logits_NL: npt.NDArray[np.float64]) -> Float32Array:
    """Return what is predicted of each label, float32 (N, L): a probability, or the value that its link makes."""
    predictions_NL = sigmoid(logits_NL)
    for number, link in enumerate(schema.label_links):
        if link != "logit":
            predictions_NL[:, number] = value_of(link, logits_NL[:, number])
    return predictions_NL.astype(np.float32)


def divide_by_shares(schema: Schema, predictions_NL: Float32Array, shares: Mapping[str, float]) -> Float32Array:
    """Return predictions of all that comes, from those of what comes within the windows of labels.

    `shares`: of the events of labels that come within the window; a label without one stays as it is.
    """
    if not shares:
        return predictions_NL
    divided_NL = predictions_NL.astype(np.float64)
    for number, name in enumerate(schema.labels):
        if name in shares:
            divided_NL[:, number] /= max(shares[name], LEAST_SHARE)
            if schema.label_links[number] == "logit":
                divided_NL[:, number] = np.minimum(divided_NL[:, number], MAX_PROBABILITY)
    return divided_NL.astype(np.float32)


def sigmoid(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return 1 / (1 + exp(-x)), exact also where x is large."""
    small = np.exp(-np.abs(logits))
    probabilities: npt.NDArray[np.float64] = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return probabilities
