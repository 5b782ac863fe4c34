"""The world at one version: a mapped base, the rows changed since in layers, the dense parameters. Never changes.

Servers and HotModel answer from the same functions here, so equal versions give equal numbers, bit by bit.
Knows no files beyond the base and no threads: a follower makes views, whoever answers keeps the one it took.
"""

# K keys, M some of them, D dimension, N samples, L labels
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from springtide_client.errors import GapError, LogError
from springtide_client.features import Features
from springtide_client.format.records import Record, Tip, VersionMeta
from springtide_client.keys import SHARED_ROW_OFFSET, Int64Array
from springtide_client.log.base import MODEL, SERVING_FILES, Base
from springtide_client.model.inputs import FloatArray, assemble, lookup_keys
from springtide_client.rows.admission_counts import AdmissionCounts
from springtide_client.rows.initial_values import initial_values
from springtide_client.rows.layers import RowLayer, merge_layers, record_layer
from springtide_client.rows.search import FORGOTTEN as FORGOTTEN
from springtide_client.rows.search import KNOWN as KNOWN
from springtide_client.rows.search import NOT_ADMITTED as NOT_ADMITTED
from springtide_client.rows.search import UNKNOWN as UNKNOWN
from springtide_client.rows.search import LayerStack, NumpySearch, RowSearch, SearchFactory
from springtide_client.schema import Schema

if TYPE_CHECKING:
    from springtide_client.model.exported_model import ExportedModel, ModelParameters

STATUS_NAMES = ("known", "unknown", "not_admitted", "forgotten")

# so many layers are searched before any are merged; then a layer is at least so many times as long as the one above it
FEW_LAYERS, LAYER_RATIO = 4, 4


@dataclass(frozen=True)
class View:
    """One version. `apply` and `merged` give new views and leave this one as it is."""

    base: Base
    layers: tuple[RowLayer, ...]  # changed rows and marks of forgotten ids since the base, newest first
    disk_layer: RowLayer | None  # older ones, moved to a mapped file
    admission_counts: AdmissionCounts  # ids without a row
    tip: Tip
    parent: int  # checksum of the version before
    meta: VersionMeta
    schema: Schema
    model: "ExportedModel"
    parameters: "ModelParameters"
    search_factory: SearchFactory = NumpySearch

    @staticmethod
    def open(base_path: Path, like: "View | None" = None, search_factory: SearchFactory = NumpySearch) -> "View":
        """The view of a base alone; the program of `like` is taken over where it is the same.

        LogError where the base's files do not fit together.
        """
        from springtide_client.model.exported_model import ExportedModel  # torch takes a second to import

        base = Base.open(base_path, SERVING_FILES)
        base.advise_random_access(with_states=False)
        manifest = base.manifest
        if base.model_path is None:
            raise LogError(f"{base_path} holds no {MODEL}: it cannot be served")
        if like is not None and like.base.manifest.files.get(MODEL) == manifest.files[MODEL]:
            model = like.model  # parsing a program holds up other threads
        else:
            model = ExportedModel.load(base.model_path)
        return View(
            base=base,
            layers=(),
            disk_layer=None,
            admission_counts=AdmissionCounts(manifest.meta.sketch_blocks, base.sketch),
            tip=manifest.tip,
            parent=0,
            meta=manifest.meta,
            schema=manifest.decode_schema(),
            model=model,
            parameters=model.parameters(dense_of(base.dense)),
            search_factory=search_factory,
        )

    @property
    def version(self) -> int:
        """epoch * 2**32 + count."""
        return self.tip.number

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self.base.manifest.table.dim

    @property
    def num_bytes(self) -> int:
        """The memory of its own: layers in RAM and dense parameters; what is mapped from files is not counted."""
        return sum(layer.num_bytes for layer in self.layers) + self.fixed_bytes

    @property
    def fixed_bytes(self) -> int:
        """Of it, what cannot move to a file: dense parameters, and blocks of the admission sketch."""
        return self.parameters.num_bytes + self.admission_counts.num_bytes

    @cached_property
    def search(self) -> RowSearch:
        """What finds its rows."""
        return self.search_factory(self._stack)

    def prepare(self) -> None:
        """Make what look-ups need, so that the first of them does not wait for it."""
        _ = self.search

    @property
    def all_layers(self) -> tuple[RowLayer, ...]:
        """Changed rows and the base's, newest first, without empty ones."""
        private = () if self.disk_layer is None else (self.disk_layer,)
        return tuple(layer for layer in (*self.layers, *private, self.base.rows) if len(layer))

    @property
    def _stack(self) -> LayerStack:
        meta = self.meta
        return LayerStack(
            self.all_layers, self.dim, meta.expiry_cutoffs, meta.admission, self.admission_counts, meta.sketch_age
        )

    def lookup(self, features_K: npt.NDArray[np.uint16], ids_K: Int64Array) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        """Rows float32 (K, D), NaN where there is none, and status uint8 (K).

        0 known, 1 unknown, 2 not admitted (seen, and not often enough for a row), 3 forgotten. One feature may stand
        for all ids.
        """
        return self.search(features_K, ids_K)

    def row_info(self, feature: int, row_id: int) -> dict[str, Any]:
        """`{"status", "vector", "count", "last_seen_ms"}` of one key; all but the status None where there is no row."""
        features_1, ids_1 = np.array([feature], np.uint16), np.array([row_id], np.int64)
        rows_1D, status_1 = self.search(features_1, ids_1)
        status = int(status_1[0])
        if status != KNOWN:
            return {"status": STATUS_NAMES[status], "vector": None, "count": None, "last_seen_ms": None}
        places = ((layer, int(layer.find(features_1, ids_1)[0])) for layer in self._stack.layers)
        layer, row = next((layer, row) for layer, row in places if row >= 0)
        return {
            "status": STATUS_NAMES[KNOWN],
            "vector": rows_1D[0],
            "count": int(layer.count[row]),
            "last_seen_ms": int(layer.last_seen[row]),
        }

    def rows_for_model(self, features_K: npt.NDArray[np.uint16], ids_K: Int64Array) -> FloatArray:
        """The rows that a model sees, float32 (K, D).

        An id that is not admitted has the shared row of its feature; another one without a row takes the value it
        would be created with.
        """
        return self._rows_for_model(features_K, ids_K)[0]

    def _rows_for_model(
        self, features_K: npt.NDArray[np.uint16], ids_K: Int64Array
    ) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        rows_KD, status_K = self.search(features_K, ids_K)
        missing_M = np.flatnonzero(status_K)
        if len(missing_M):
            shared_M = status_K[missing_M] == NOT_ADMITTED
            features_M = np.where(shared_M, features_K[missing_M] + np.uint16(SHARED_ROW_OFFSET), features_K[missing_M])
            ids_M = np.where(shared_M, 0, ids_K[missing_M])
            rows_MD = self._first_values(features_M, ids_M)
            if shared_M.any():
                found_MD, status_M = self.search(features_M, ids_M)
                rows_MD[status_M == KNOWN] = found_MD[status_M == KNOWN]
            rows_KD[missing_M] = rows_MD
        return rows_KD, status_K

    def _first_values(self, features_M: npt.NDArray[np.uint16], ids_M: Int64Array) -> FloatArray:
        table = self.base.manifest.table
        return initial_values(
            features_M, ids_M, dim=table.dim, seed=table.seed, scale=table.init_scale, dtype=table.dtype
        )

    def predict(self, features: Features) -> FloatArray:
        """Probabilities float32 (N, L) in the order of the schema's labels."""
        return self.predict_with_status(features)[0]

    def predict_with_status(self, features: Features) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        """The same, and the status (K) of the rows that were wanted for it, in the order of `lookup_keys`."""
        features_K, ids_K = lookup_keys(self.schema, features)
        rows_KD, status_K = self._rows_for_model(features_K, ids_K)
        return self.model.predict(self.parameters, assemble(self.schema, features, rows_KD)), status_K

    def apply(self, record: Record) -> "View":
        """The view of the next version; GapError where the record is not this version's child or of another schema."""
        if record.parent != self.tip.checksum or record.number <= self.tip.number:
            raise GapError(f"version {record.number} does not follow version {self.tip.number}")
        if record.meta.fingerprint != self.meta.fingerprint:
            raise GapError(f"version {record.number} was written with another schema")
        tensors = record.tensors()
        layer = record_layer(tensors, self.dim)
        dense = dense_of(tensors)
        return replace(
            self,
            layers=(layer, *self.layers) if len(layer) else self.layers,
            admission_counts=self.admission_counts.apply(tensors, record.meta.sketch_blocks),
            tip=Tip(record.number, record.checksum),
            parent=record.parent,
            meta=record.meta,
            parameters=self.model.parameters(dense, self.parameters) if dense else self.parameters,
        )

    def merged(self) -> "View":
        """The same version in few layers: apart from `apply`, so that no version waits for it to be served."""
        seen = self.admission_counts.merged()
        layers = list(reversed(self.layers))  # oldest first: a stack
        start = len(layers) if len(layers) > FEW_LAYERS else 0
        while start > 1 and len(layers[start - 2]) < LAYER_RATIO * sum(len(layer) for layer in layers[start - 1 :]):
            start -= 1
        if start == 0 or start > len(layers) - 1:
            return self if seen is self.admission_counts else replace(self, admission_counts=seen)
        top = merge_layers(*layers[start - 1 :])
        return replace(self, layers=(top, *reversed(layers[: start - 1])), admission_counts=seen)


def dense_of(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The dense model's parameters by their own names."""
    return {name.removeprefix("dense."): array for name, array in tensors.items() if name.startswith("dense.")}
