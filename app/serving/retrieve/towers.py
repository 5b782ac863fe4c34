"""The two towers of one view: vectors of users and items from the view's rows and parameters."""

# N samples, I items, M some of them, K keys, D dimension of rows, L lists, F dense features, S layers and one,
# W weights, O dimension of the towers' vectors
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import MAX_DEVIATIONS, VARIANCE_FLOOR
from springtide.app.models.registry import build_model
from springtide.app.models.retrieval.schema_part import SchemaPart
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide.app.serving.model.served_view import ServedView
from springtide.app.version_log.change.plan import ModelSignature
from springtide.app.version_log.items import ItemColumns, ItemLayout
from springtide.kernels.cpu.serving.item_columns import unpack_items, unpack_items_holding_gil
from springtide.kernels.cpu.serving.towers import (
    MAX,
    MEAN,
    SUM,
    dot_products,
    encode_samples,
    encode_samples_holding_gil,
)
from springtide_client.errors import VersionsDifferError
from springtide_client.features import Features
from springtide_client.model.inputs import lookup_keys, scaled_rows
from springtide_client.model.view import KNOWN

FloatArray = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
POOLINGS = {"mean": MEAN, "sum": SUM, "max": MAX}
FEW_SAMPLES = 256  # other threads wait for so many


@dataclass(frozen=True, eq=False)
class CompiledTower:
    """One tower of a version, compiled: from the rows and numbers of samples to vectors. Immutable.

    It equals springtide.app.models.retrieval.two_tower.Tower but for rounding.
    """

    num_categorical: int
    pooling_L: Int64Array
    mean_F: FloatArray
    scale_F: FloatArray
    sizes_S: Int64Array
    weights_W: FloatArray

    @staticmethod
    def of(part: SchemaPart, arrays: Mapping[str, npt.NDArray[np.float32]]) -> "CompiledTower":
        """Return the tower of these fields, whose parameters and statistics are `arrays` by name."""
        pooled = [POOLINGS[part.pooling_of(name)] for name in part.multi_value]
        weights = [name for name in arrays if name.startswith("layers.") and name.endswith(".weight")]
        weights.sort(key=lambda name: int(name.split(".")[1]))
        packed = [
            numbers
            for name in weights
            for numbers in (arrays[name.replace("weight", "bias")], np.ravel(arrays[name].T))
        ]
        seen_F = arrays["normalizer.count_F"] > 0
        scale_F = 1 / np.sqrt(arrays["normalizer.variance_F"] + np.float32(VARIANCE_FLOOR))
        return CompiledTower(
            num_categorical=len(part.categorical),
            pooling_L=np.array([*pooled, *(MEAN for _ in part.sequence)], np.int64),
            mean_F=np.array(arrays["normalizer.mean_F"], np.float32),
            scale_F=np.where(seen_F, scale_F, 0).astype(np.float32),
            sizes_S=np.array([arrays[weights[0]].shape[1], *(len(arrays[name]) for name in weights)], np.int64),
            weights_W=np.concatenate(packed).astype(np.float32),
        )

    @property
    def num_out(self) -> int:
        """The length of a vector."""
        return int(self.sizes_S[-1])

    def vectors(self, rows_KD: FloatArray, offsets_LN1: Int64Array, dense_NF: FloatArray) -> FloatArray:
        """Return vectors of length 1, float32 (N, O), from rows in the order of `lookup_keys`."""
        vectors_NO = np.empty((len(dense_NF), self.num_out), np.float32)
        encode = encode_samples_holding_gil if len(dense_NF) <= FEW_SAMPLES else encode_samples
        encode(
            np.ascontiguousarray(rows_KD),
            self.num_categorical,
            offsets_LN1,
            self.pooling_L,
            dense_NF,
            self.mean_F,
            self.scale_F,
            np.float32(MAX_DEVIATIONS),
            self.sizes_S,
            self.weights_W,
            vectors_NO,
        )
        return vectors_NO


def user_rows(view: ServedView, part: SchemaPart, features: Features) -> FloatArray:
    """Return the rows of users in the order of `lookup_keys`, weighted ones such that a tower pools them by weight.

    PartError: a part's rows lack.
    """
    rows_KD, _ = view.client_view.rows_for_model(*lookup_keys(part, features))
    return scaled_rows(part, features, rows_KD)


CHUNK_ITEMS = 2_048  # encoded at once: other work of the thread waits so long


class ItemVectors(NamedTuple):
    """Vectors of items [I, O], and which of the items have a row: the others are not to be found."""

    vectors_IO: FloatArray
    known_I: npt.NDArray[np.bool_]


class UserInputs(NamedTuple):
    """Inputs of the user's tower: rows in the order of `lookup_keys`, where lists end, and numbers."""

    rows_KD: FloatArray
    offsets_LN1: Int64Array
    dense_NF: FloatArray


class TowerTemplate:
    """Shapes and program that the towers of a base's versions have in common."""

    def __init__(self, view: ServedView) -> None:
        """ValueError if the view's model has no towers."""
        base = view.client_view.base
        layout = ItemLayout.of(view.schema, base.manifest.model)
        if layout is None:
            raise ValueError(f'the model "{base.manifest.model.name}" has no towers')
        design, model = ModelSignature.of(base), base.manifest.model
        spec = ModelSpec.of(design.schema, design.widest_dim, design.dims)
        net = build_model(ModelConfig(name=model.name, options=model.options), spec, seed=0)
        assert isinstance(net, TwoTower)
        self.layout, self.temperature = layout, net.temperature
        self.user_part = SchemaPart.of(view.schema, net.user_fields)
        part = layout.part
        self.item_numbers = np.array([part.number(name) for name in part.features], np.uint16)
        self.item_column = part.categorical.index(layout.id_field)

    def of(self, view: ServedView) -> "Towers":
        """Return the towers with the parameters of a view of the same model."""
        client_view = view.client_view
        named = client_view.model.named_arrays(client_view.parameters)

        def tower(prefix: str, part: SchemaPart) -> CompiledTower:
            return CompiledTower.of(
                part, {n.removeprefix(prefix): array for n, array in named.items() if n.startswith(prefix)}
            )

        return Towers(self, tower("user.", self.user_part), tower("item.", self.layout.part), view)


class Towers:
    """Immutable: threads may call it at the same time."""

    def __init__(self, template: TowerTemplate, user: CompiledTower, item: CompiledTower, view: ServedView) -> None:
        self.template, self.view = template, view
        self._user, self._item = user, item

    def at(self, view: ServedView) -> "Towers":
        """Return the same nets over the rows of another view."""
        return Towers(self.template, self._user, self._item, view)

    @property
    def rows_are_elsewhere(self) -> bool:
        """True if other servers hold rows that describe the items of this one, and are not known to it."""
        view, part = self.view, self.template.layout.part
        return not view.part.holds_all and view.part.servers is None and len(part.features) > 1

    @property
    def num_out(self) -> int:
        """The length of a vector."""
        return self._item.num_out

    def user_inputs(self, features: Features) -> UserInputs:
        """Return the inputs of users, whose features are those of the user's fields. PartError: a part's rows lack."""
        rows_KD = user_rows(self.view, self.template.user_part, features)
        offsets_LN1 = np.empty((len(features.lists), len(features) + 1), np.int64)
        for place, ragged in enumerate(features.lists):
            offsets_LN1[place] = ragged.offsets
        return UserInputs(rows_KD, offsets_LN1, features.dense_NF)

    def users(self, inputs: UserInputs) -> FloatArray:
        """Return the vectors of users, float32 (N, O)."""
        return self._user.vectors(*inputs)

    def items(
        self,
        columns: ItemColumns,
        between: Callable[[], bool] = lambda: True,
        newest_view: Callable[[], ServedView | None] = lambda: None,
    ) -> ItemVectors | None:
        """Return the vectors of all items. `between` is called now and then, and ends it by returning False: None.

        Once other servers no longer have the view's rows, those of `newest_view` are used.
        """
        towers = self
        vectors_IO = np.empty((len(columns), self.num_out), np.float32)
        known_I = np.empty(len(columns), np.bool_)
        for start in range(0, len(columns), CHUNK_ITEMS):
            chunk = slice(start, start + CHUNK_ITEMS)
            places_M = np.arange(start, min(len(columns), start + CHUNK_ITEMS))
            try:
                vectors_IO[chunk], known_I[chunk] = towers._item_vectors(columns, places_M)
            except VersionsDifferError:
                if (view := newest_view()) is None or view is towers.view:
                    raise
                towers = self.at(view)
                vectors_IO[chunk], known_I[chunk] = towers._item_vectors(columns, places_M)
            if not between():
                return None
        return ItemVectors(vectors_IO, known_I)

    def scores(
        self, columns: ItemColumns, places_M: Int64Array, query_O: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Return the scores of some items for a user's vector, float32 (M), and which of the items have a row."""
        vectors_MO, known_M = self._item_vectors(columns, places_M)
        scores_M = np.empty(len(places_M), np.float32)
        dot_products(vectors_MO, query_O, np.float32(1 / self.template.temperature), scores_M)
        return scores_M, known_M

    def _item_vectors(self, columns: ItemColumns, places_M: Int64Array) -> ItemVectors:
        template = self.template
        part, num = template.layout.part, len(places_M)
        unpack = unpack_items_holding_gil if num <= FEW_SAMPLES else unpack_items
        features_K, ids_K, offsets_LM1, words_MF = unpack(
            places_M,
            columns.ids_I,
            columns.offsets_I1,
            columns.words_W,
            template.item_column,
            template.item_numbers,
            len(part.categorical),
            len(part.dense),
        )
        rows_KD, status_K = self.view.client_view.rows_for_model(features_K, ids_K)
        dense_MF = words_MF.view(np.float64).astype(np.float32)
        known_M = (
            status_K[: num * len(part.categorical)].reshape(num, len(part.categorical))[:, template.item_column]
            == KNOWN
        )
        return ItemVectors(self._item.vectors(rows_KD, offsets_LM1, dense_MF), known_M)
