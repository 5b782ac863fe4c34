"""DynamicEmbedding.pool, compared with torch's EmbeddingBag."""

from typing import Any

import pytest
import torch
from torch import nn

from springtide import DynamicEmbedding

MODES = ["sum", "mean", "max"]
RAGGED = [([0, 3, 3, 5], 8), ([0], 4), ([0, 0, 0], 0), ([], 0), ([0, 1, 2, 3], 4)]


def pair(num_ids: int = 50) -> tuple[DynamicEmbedding, nn.EmbeddingBag]:
    matrix = torch.randn(num_ids, 6, generator=torch.Generator().manual_seed(1))
    emb = DynamicEmbedding.from_pretrained(matrix, optimizer={"name": "sgd", "lr": 0.5})
    return emb, nn.EmbeddingBag.from_pretrained(matrix.clone(), freeze=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("offsets", "num_ids"), RAGGED)
def test_ragged_bags_equal_torchs(offsets: list[int], num_ids: int, training: bool, mode: str) -> None:
    emb, bag = pair()
    bag.mode = mode
    ids = torch.randint(0, 50, (num_ids,), generator=torch.Generator().manual_seed(2))
    starts = torch.tensor(offsets, dtype=torch.int64)
    rows = emb.train(training).pool(ids, starts, mode)
    assert rows.shape == (len(offsets), 6)
    assert rows.requires_grad == training
    if offsets:
        torch.testing.assert_close(rows, bag(ids, starts))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(4, 5), (3, 1), (0, 3), (3, 0)])
def test_rows_of_ids_are_bags(shape: tuple[int, int], mode: str) -> None:
    emb, _ = pair()
    ids = torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(2))
    rows = emb(ids).detach()
    for training in (True, False):
        pooled = emb.train(training).pool(ids, mode=mode)
        if 0 in shape:
            assert torch.equal(pooled, torch.zeros(shape[0], 6))
        else:
            expected = rows.amax(1) if mode == "max" else getattr(rows, mode)(1)
            torch.testing.assert_close(pooled, expected)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_reach_the_rows_through_the_bags(mode: str) -> None:
    emb, bag = pair()
    bag.mode = mode
    sgd = torch.optim.SGD(bag.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        ids = torch.randint(0, 50, (40,), generator=generator)
        offsets = torch.tensor([0, 3, 3, 10, 30])
        weight = torch.randn(5, 6, generator=generator)
        for model in (lambda *bags: emb.pool(*bags, mode=mode), bag):
            (model(ids, offsets) * weight).sum().backward()
        sgd.step()
        sgd.zero_grad()
    torch.testing.assert_close(emb.lookup(torch.arange(50))[0], bag.weight.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((torch.arange(4),), "2-D"),
        ((torch.zeros(2, 2, 2, dtype=torch.int64),), "2-D"),
        ((torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0])), "1-D"),
        ((torch.arange(4), torch.tensor([1, 2])), "begin with 0"),
        ((torch.arange(4), torch.tensor([0, 3, 2])), "never decrease"),
        ((torch.arange(4), torch.tensor([0, 5])), "never decrease"),
        ((torch.arange(4), torch.tensor([0, -1])), "never decrease"),
        ((torch.arange(4), torch.tensor([], dtype=torch.int64)), "begin with 0"),
        ((torch.arange(4), torch.tensor([0.0])), "integers"),
        ((torch.arange(4), [0]), "tensor"),
        ((torch.arange(4), torch.tensor([0]), "median"), "median"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_invalid_bags_are_refused(arguments: Any, named: str, training: bool) -> None:
    emb = DynamicEmbedding(4, 16).train(training)
    with pytest.raises(ValueError, match=named):
        emb.pool(*arguments)
    assert len(emb) == 0


def test_pool_takes_scores() -> None:
    emb = DynamicEmbedding(4, 16, eviction="custom")
    emb.pool(torch.arange(16).reshape(4, 4), scores=torch.arange(16).reshape(4, 4)).sum().backward()
    emb.pool(torch.tensor([[50]]), scores=torch.tensor([[60]])).sum().backward()
    assert emb.lookup(torch.tensor([0, 1, 50]))[1].tolist() == [3, 0, 0]
