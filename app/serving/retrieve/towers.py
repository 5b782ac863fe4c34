"""The two towers of one view: vectors of users and items from the view's rows and parameters."""

# N samples, K keys, D dimension of rows, O of the towers' vectors, C categorical features
import copy
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from springtide_client.features import Features
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.model.view import KNOWN

from app.models.config import ModelConfig
from app.models.interface import ModelSpec
from app.models.registry import build_model
from app.models.retrieval.schema_part import SchemaPart
from app.models.retrieval.two_tower import Tower, TwoTower
from app.serving.model.view import ModelView
from app.version_log.change.design import Design
from app.version_log.items import ItemLayout

FloatArray = npt.NDArray[np.float32]
CHUNK_SAMPLES = 8_192


class ItemVectors(NamedTuple):
    """Vectors of items [N, O], and which of the items have a row: the others are not to be found."""

    vectors_NO: FloatArray
    known_N: npt.NDArray[np.bool_]


class TowerTemplate:
    """The net of a base, without parameters: those of a version are put into a copy."""

    def __init__(self, view: ModelView) -> None:
        """ValueError if the view's model has no towers."""
        base = view.client_view.base
        layout = ItemLayout.of(view.schema, base.manifest.model)
        if layout is None:
            raise ValueError(f'the model "{base.manifest.model.name}" has no towers')
        design, model = Design.of(base), base.manifest.model
        spec = ModelSpec.of(design.schema, design.widest_dim, design.dims)
        net = build_model(ModelConfig(name=model.name, options=model.options), spec, seed=0).eval()
        assert isinstance(net, TwoTower)
        self.layout, self.net = layout, net
        self.user_part = SchemaPart.of(view.schema, net.user_fields)

    def of(self, view: ModelView) -> "Towers":
        """Return the towers with the parameters of a view of the same model."""
        net, client_view = copy.deepcopy(self.net), view.client_view
        arrays = client_view.model.named_arrays(client_view.parameters)
        net.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, strict=False)
        return Towers(self, net, view)


class Towers:
    """Immutable: threads may call it at the same time."""

    def __init__(self, template: TowerTemplate, net: TwoTower, view: ModelView) -> None:
        self.template, self.view, self._net = template, view, net

    def at(self, view: ModelView) -> "Towers":
        """Return the same nets over the rows of another view."""
        return Towers(self.template, self._net, view)

    @property
    def temperature(self) -> float:
        """By which dot products are divided."""
        return self._net.temperature

    def users(self, features: Features) -> FloatArray:
        """Return the vectors of users, float32 (N, O), from features of the user's fields."""
        return self._vectors(self._net.user, self.template.user_part, features)[0]

    def items(self, features: Features) -> ItemVectors:
        """Return the vectors of items from features of the item's fields."""
        layout = self.template.layout
        column = layout.part.categorical.index(layout.id_field)
        parts, known = [], []
        for start in range(0, len(features), CHUNK_SAMPLES):
            chunk = features.slice(start, min(len(features), start + CHUNK_SAMPLES))
            vectors_NO, status_K = self._vectors(self._net.item, layout.part, chunk)
            num_categorical = chunk.categorical_NC.shape[1]
            parts.append(vectors_NO)
            known.append(status_K[: len(chunk) * num_categorical].reshape(-1, num_categorical)[:, column] == KNOWN)
        if not parts:
            return ItemVectors(np.zeros((0, self._net.item.num_out), np.float32), np.zeros(0, np.bool_))
        return ItemVectors(np.concatenate(parts), np.concatenate(known))

    def _vectors(self, tower: Tower, part: SchemaPart, features: Features) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        rows_KD, status_K = self.view.client_view.rows_for_model(*lookup_keys(part, features))
        inputs = assemble(part, features, rows_KD)
        with torch.inference_mode():
            vectors: FloatArray = tower(*(torch.from_numpy(np.ascontiguousarray(x)) for x in inputs)).numpy()
        return vectors, status_K
