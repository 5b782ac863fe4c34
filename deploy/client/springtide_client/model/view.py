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
from springtide_client.format.records import Record, Tip, VersionMeta
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import MODEL, Base
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.rows.admission_counts import AdmissionCounts
from springtide_client.rows.initial_values import initial_values
from springtide_client.rows.layers import merge_layers, record_layer
from springtide_client.rows.row_layer import RowLayer
from springtide_client.rows.search import FORGOTTEN as FORGOTTEN
from springtide_client.rows.search import KNOWN as KNOWN
from springtide_client.rows.search import NOT_ADMITTED as NOT_ADMITTED
from springtide_client.rows.search import UNKNOWN as UNKNOWN
from springtide_client.rows.search import LayerStack, NumpySearch, RowSearch, SearchFactory
from springtide_client.schema import Schema
from springtide_client.system.switch_interval import short_switch_interval

if TYPE_CHECKING:
    from springtide_client.model.exported_model import ExportedModel, ModelParameters

STATUS_NAMES = ("known", "unknown", "not_admitted", "forgotten")

# layers are merged once there are more than MAX_UNMERGED_LAYERS; then each is at least LAYER_RATIO times as long as the
# one above it
MAX_UNMERGED_LAYERS, LAYER_RATIO = 4, 4


@dataclass(frozen=True)
class View:
    """One version. `apply` and `merged` return new views and leave this one unchanged."""

    base: Base
    layers: tuple[RowLayer, ...]  # rows changed and tombstones since the base, newest first
    disk_layer: RowLayer | None  # older ones, moved to a mapped file
    admission_counts: AdmissionCounts  # of ids without a row
    tip: Tip
    parent: int  # checksum of the version before
    meta: VersionMeta
    schema: Schema
    model: "ExportedModel"
    parameters: "ModelParameters"
    search_factory: SearchFactory = NumpySearch

    @staticmethod
    def open(base_path: Path, like: "View | None" = None, search_factory: SearchFactory = NumpySearch) -> "View":
        """Open a base as a view; LogError when its files do not fit together.

        The loaded program of `like` is reused when the base holds the same one.
        """
        from springtide_client.model.exported_model import ExportedModel  # importing torch takes a second

        base = Base.open(base_path, for_serving=True)
        base.advise_random_access(with_states=False)
        manifest = base.manifest
        if base.model_path is None:
            raise LogError(f"{base_path} holds no {MODEL}: it cannot be served")
        if like is not None and like.base.manifest.files.get(MODEL) == manifest.files[MODEL]:
            model = like.model
        else:
            with short_switch_interval():  # parsing a program takes 0.2 s in Python, beside calls that need the GIL
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
        """The version number, epoch * 2**32 + count."""
        return self.tip.number

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self.base.manifest.table.dim

    @property
    def num_bytes(self) -> int:
        """The memory of layers, parameters and counts. Mapped files are not included."""
        return sum(layer.num_bytes for layer in self.layers) + self.fixed_bytes

    @property
    def fixed_bytes(self) -> int:
        """The part of `num_bytes` that cannot move to a file: dense parameters, and blocks of the admission sketch."""
        return self.parameters.num_bytes + self.admission_counts.num_bytes

    @property
    def num_changed_rows(self) -> int:
        """The rows and tombstones in the layers over the base, in memory and on disk."""
        return sum(map(len, self.layers)) + (0 if self.disk_layer is None else len(self.disk_layer))

    @cached_property
    def search(self) -> RowSearch:
        """The search over this view's rows."""
        return self.search_factory(self._stack)

    def prepare(self) -> None:
        """Build what lookups need, so that the first one does not wait for it."""
        _ = self.search

    @property
    def all_layers(self) -> tuple[RowLayer, ...]:
        """The layers and the base's rows, newest first, without empty ones."""
        on_disk = () if self.disk_layer is None else (self.disk_layer,)
        return tuple(layer for layer in (*self.layers, *on_disk, self.base.rows) if len(layer))

    @property
    def _stack(self) -> LayerStack:
        meta = self.meta
        return LayerStack(
            self.all_layers, self.dim, meta.expiry_cutoffs, meta.admission, self.admission_counts, meta.sketch_age
        )

    def lookup(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return rows float32 (K, D), NaN where there is none, and status uint8 (K).

        0 known, 1 unknown, 2 not admitted (seen too seldom for a row), 3 forgotten. `features_K` may hold one feature
        for all ids.
        """
        return self.search(features_K, ids_K)

    def row_info(self, feature: int, row_id: int) -> dict[str, Any]:
        """Return `{"status", "vector", "count", "last_seen_ms"}` of one key; None in all but the status if no row."""
        features_1, ids_1 = np.array([feature], np.uint16), np.array([row_id], np.int64)
        rows_1D, status_1 = self.search(features_1, ids_1)
        status = int(status_1[0])
        if status != KNOWN:
            return {"status": STATUS_NAMES[status], "vector": None, "count": None, "last_seen_ms": None}
        found = ((layer, int(layer.find(features_1, ids_1)[0])) for layer in self._stack.layers)
        layer, row = next((layer, row) for layer, row in found if row >= 0)
        return {
            "status": STATUS_NAMES[KNOWN],
            "vector": rows_1D[0],
            "count": int(layer.count[row]),
            "last_seen_ms": int(layer.last_seen[row]),
        }

    def rows_for_model(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        """Return the rows that a model sees, float32 (K, D) without NaN, and status uint8 (K).

        An id that is not admitted gets the shared row of its feature. Any other id without a row gets the initial value
        that its row would be created with.
        """
        rows_KD, status_K = self.search(features_K, ids_K)
        missing_M = np.flatnonzero(status_K)
        if len(missing_M):
            shared_M = status_K[missing_M] == NOT_ADMITTED
            features_M = np.where(shared_M, features_K[missing_M] + np.uint16(SHARED_ROW_OFFSET), features_K[missing_M])
            ids_M = np.where(shared_M, 0, ids_K[missing_M])
            rows_MD = self._initial_values(features_M, ids_M)
            if shared_M.any():
                found_MD, status_M = self.search(features_M, ids_M)
                rows_MD[status_M == KNOWN] = found_MD[status_M == KNOWN]
            rows_KD[missing_M] = rows_MD
        return rows_KD, status_K

    def _initial_values(self, features_M: UInt16Array, ids_M: Int64Array) -> Float32Array:
        table = self.base.manifest.table
        return initial_values(
            features_M, ids_M, dim=table.dim, seed=table.seed, scale=table.init_scale, dtype=table.dtype
        )

    def predict(self, features: Features) -> Float32Array:
        """Return probabilities float32 (N, L) in the order of the schema's labels."""
        return self.predict_with_status(features)[0]

    def predict_with_status(self, features: Features) -> tuple[Float32Array, UInt8Array]:
        """Return probabilities (N, L), and the status (K) of each key of `lookup_keys`, in its order."""
        features_K, ids_K = lookup_keys(self.schema, features)
        rows_KD, status_K = self.rows_for_model(features_K, ids_K)
        return self.model.predict(self.parameters, assemble(self.schema, features, rows_KD)), status_K

    def apply(self, record: Record) -> "View":
        """Return the view of the next version; GapError if the record is not its child, or of another schema."""
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
        """Return the same version with fewer layers. Apart from `apply`, so that serving does not wait for merging."""
        counts = self.admission_counts.merged()
        layers = list(reversed(self.layers))  # oldest first: a stack
        start = len(layers) if len(layers) > MAX_UNMERGED_LAYERS else 0
        while start > 1 and len(layers[start - 2]) < LAYER_RATIO * sum(len(layer) for layer in layers[start - 1 :]):
            start -= 1
        if start == 0 or start > len(layers) - 1:
            return self if counts is self.admission_counts else replace(self, admission_counts=counts)
        top = merge_layers(*layers[start - 1 :])
        return replace(self, layers=(top, *reversed(layers[: start - 1])), admission_counts=counts)


def dense_of(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the dense model's parameters without their prefix `dense.`."""
    return {name.removeprefix("dense."): array for name, array in tensors.items() if name.startswith("dense.")}
