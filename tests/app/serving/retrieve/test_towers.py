from dataclasses import replace

import numpy as np
import pytest
import torch

from springtide.app.models.interface import ModelSpec
from springtide.app.models.retrieval.schema_part import SchemaPart
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide.app.serving.retrieve.towers import CompiledTower
from springtide_client.features import Features, Ragged
from springtide_client.model.inputs import assemble, scaled_rows
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",),
    categorical=("user_id", "item_id"),
    multi_value=("tags", "genres", "moods"),
    sequence=("last_items",),
    dense=("age", "price", "never_seen"),
    pooling={"genres": "max", "moods": "sum"},
)
DIM = 6


WEIGHTED = replace(SCHEMA, weighted=("tags", "moods"))


def features_of(part: SchemaPart, num: int) -> Features:
    """Return samples with empty and long lists, and missing numbers."""
    draw = np.random.default_rng(num)

    def ragged(name: str) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(draw.integers(0, 4, num))])
        weights_M = draw.choice([0, 0.2, -1.5, 3], offsets[-1]).astype(np.float32) if name in part.weighted else None
        return Ragged(draw.integers(0, 99, offsets[-1]), offsets, weights_M)

    dense_NF = draw.normal(0, 50, (num, len(part.dense))).astype(np.float32)
    dense_NF[draw.random(dense_NF.shape) < 0.3] = np.nan
    ids_NC = draw.integers(0, 99, (num, len(part.categorical)))
    return Features(ids_NC, tuple(ragged(name) for name in part.lists), dense_NF)


@pytest.mark.parametrize("hidden", [(), (7,), (8, 5)])
@pytest.mark.parametrize("num", [0, 1, 9, 300])
@pytest.mark.parametrize("schema", [SCHEMA, WEIGHTED], ids=["plain", "weighted"])
def test_a_compiled_tower_equals_the_net(schema, hidden, num):
    torch.manual_seed(0)
    item = ["item_id", "tags", "genres", "moods", "price"]
    net = TwoTower(ModelSpec.of(schema, DIM, {}), item=item, hidden=hidden, dim=5)
    net.observe_inputs(torch.tensor([[30.0, 2.0, torch.nan], [50.0, torch.nan, torch.nan], [20.0, 9.0, torch.nan]]))
    for names, torch_tower in ((net.user_fields, net.user), (net.item_fields, net.item)):
        part = SchemaPart.of(schema, names)
        features = features_of(part, num)
        num_keys = features.categorical_NC.size + sum(len(ragged.ids_M) for ragged in features.lists)
        rows_KD = np.random.default_rng(1).normal(size=(num_keys, DIM)).astype(np.float32)
        with torch.no_grad():
            expected = torch_tower(*(torch.from_numpy(x) for x in assemble(part, features, rows_KD)))
        arrays = {name: array.numpy() for name, array in torch_tower.state_dict().items()}
        offsets_LN1 = np.array([ragged.offsets for ragged in features.lists]).reshape(len(part.lists), num + 1)
        rows_KD = scaled_rows(part, features, rows_KD)
        found = CompiledTower.of(part, arrays).vectors(rows_KD, offsets_LN1, features.dense_NF)
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)
