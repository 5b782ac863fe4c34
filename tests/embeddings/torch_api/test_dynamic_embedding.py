"""DynamicEmbedding in plain torch: ids in, rows out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from springtide import DynamicEmbedding
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.rows.initial_values import initial_values

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def values(ids: torch.Tensor, dim: int = 8, seed: int = 0, feature: int = 0) -> torch.Tensor:
    flat = ids.reshape(-1).numpy().astype(np.int64)
    rows = initial_values(np.full(len(flat), feature, np.uint16), flat, dim=dim, seed=seed, scale=0.01)
    return torch.from_numpy(rows).reshape(*ids.shape, dim)


def learn(emb: DynamicEmbedding, ids: Any, **arguments: Any) -> None:
    emb(torch.as_tensor(ids), **arguments).sum().backward()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_ids_of_any_shape_give_rows_of_that_shape(shape: tuple[int, ...], mode: str) -> None:
    emb = DynamicEmbedding(8, 64).train(mode == "train")
    ids = torch.arange(int(np.prod(shape))).reshape(shape)
    rows = emb(ids)
    assert rows.shape == (*shape, 8)
    assert torch.equal(rows.detach(), values(ids))
    found, status = emb.lookup(ids)
    assert found.shape == (*shape, 8)
    assert status.shape == shape
    assert (found.dtype, status.dtype) == (torch.float32, torch.uint8)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ids_of_any_integer_type_are_the_same_ids(dtype: torch.dtype) -> None:
    emb = DynamicEmbedding(8, 64)
    ids = torch.tensor([[1, 100], [7, 1]])
    assert torch.equal(emb(ids.to(dtype)).detach(), values(ids))
    emb.forget(torch.tensor([7], dtype=dtype))
    assert emb.lookup(ids.to(dtype))[1].tolist() == [[0, 0], [3, 0]]


def test_ids_need_not_be_contiguous() -> None:
    emb = DynamicEmbedding(8, 256)
    grid = torch.arange(60).reshape(6, 10)
    for ids in (grid.T, grid[::2, 1::3], grid[0].expand(3, 10), grid[:, :1]):
        assert torch.equal(emb(ids).detach(), values(ids))
        torch.testing.assert_close(emb.pool(ids, mode="sum").detach(), emb(ids).detach().sum(1))


def test_extreme_ids_work() -> None:
    emb = DynamicEmbedding(8, 1024, optimizer={"name": "sgd", "lr": 1.0})
    edges = [0, -1, 1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**32, 2**31, -(2**31), 32768, 2**40, -(2**40)]
    ids = torch.tensor(edges)
    for _ in range(2):
        (emb(ids) * torch.arange(len(edges))[:, None]).sum().backward()
    rows, status = emb.lookup(ids)
    assert status.tolist() == [0] * len(edges)
    torch.testing.assert_close(rows, values(ids) - 2 * torch.arange(len(edges))[:, None])
    assert sorted(emb.export()["ids"].to_pylist()) == sorted(edges)
    emb.table.check_integrity()


def test_one_id_a_million_times_is_one_row() -> None:
    emb = DynamicEmbedding(4, 16, optimizer={"name": "sgd", "lr": 1e-6})
    learn(emb, torch.full((1_000_000,), -5))
    assert emb.export()["count"].to_pylist() == [1_000_000]
    torch.testing.assert_close(emb.lookup(torch.tensor(-5))[0], values(torch.tensor(-5), 4) - 1, rtol=0, atol=1e-3)


@pytest.mark.parametrize("mode", ["eval", "no_grad", "inference_mode"])
def test_inference_creates_nothing_and_returns_initial_values(mode: str) -> None:
    emb = DynamicEmbedding(8, 64, seed=3)
    ids = torch.tensor([[5, -7], [2**62, 5]])
    if mode == "eval":
        rows = emb.eval()(ids)
    else:
        with torch.no_grad() if mode == "no_grad" else torch.inference_mode():
            rows = emb(ids)
    assert torch.equal(rows, values(ids, seed=3))
    assert not rows.requires_grad
    assert len(emb) == 0
    assert emb.counters()["read_unknown"] == 4
    _, status = emb.lookup(ids)
    assert status.tolist() == [[1, 1], [1, 1]]
    assert emb.counters()["keys"] == 0


def test_inference_returns_the_values_a_row_is_created_with() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        emb = DynamicEmbedding(16, 64, dtype=dtype)
        ids = torch.arange(-20, 20)
        predicted = emb.eval()(ids)
        assert torch.equal(emb.train()(ids).detach(), predicted)
        assert torch.equal(predicted, values(ids, 16).to(dtype).to(torch.float32))


def test_a_forgotten_id_is_new_in_inference() -> None:
    emb = DynamicEmbedding(8, 64)
    learn(emb, [1, 2])
    emb.forget(torch.tensor([[1], [1]]))
    rows, status = emb.lookup(torch.tensor([1, 2, 3]))
    assert status.tolist() == [3, 0, 1]
    assert torch.isnan(rows).all(1).tolist() == [True, False, True]
    assert torch.equal(emb.eval()(torch.tensor(1)), values(torch.tensor(1)))
    assert emb.counters()["forgotten"] == 1
    learn(emb.train(), [1])
    assert emb.export(torch.tensor([1]))["count"].to_pylist() == [1]


def test_an_id_not_admitted_yet_uses_the_shared_row() -> None:
    emb = DynamicEmbedding(8, 64, admission={"min_count": 3}, optimizer={"name": "sgd", "lr": 0.5})
    shared = values(torch.tensor(0), feature=SHARED_ROW_OFFSET)
    predicted = emb.eval()(torch.tensor(1))
    assert torch.equal(predicted, values(torch.tensor(1)))  # this id was never seen
    learn(emb.train(), [1, 2])
    rows, status = emb.lookup(torch.tensor([1, 2, 3]))
    assert status.tolist() == [2, 2, 1]
    assert torch.isnan(rows).all()
    emb.eval()
    torch.testing.assert_close(emb(torch.tensor([1, 2])), (shared - 0.5 * 2).expand(2, 8))
    assert emb.counters()["read_not_admitted"] == 4
    assert emb.counters()["not_admitted"] == 2
    learn(emb.train(), [1, 1])
    assert emb.lookup(torch.tensor([1, 2]))[1].tolist() == [0, 2]
    assert emb.counters()["admitted"] == 1
    assert emb.table.admission._dirty_blocks == []  # deltas of this table are never taken
    assert emb.export()["ids"].to_pylist() == [1]


def test_custom_eviction_keeps_the_highest_scores() -> None:
    emb = DynamicEmbedding(4, 16, eviction="custom")
    learn(emb, torch.arange(16), scores=torch.arange(16, 0, -1))
    learn(emb, [100], scores=torch.tensor([3.5]))
    status = emb.lookup(torch.arange(16))[1]
    assert status.tolist() == [0] * 15 + [3]
    with pytest.raises(ValueError, match="score"):
        emb(torch.tensor([1]))
    for wrong in (torch.ones(2), [1.0], torch.tensor([True])):
        with pytest.raises(ValueError, match="scores must be"):
            emb(torch.tensor([1]), scores=wrong)
    with pytest.raises(ValueError, match="custom"):
        DynamicEmbedding(4, 16)(torch.tensor([1]), scores=torch.ones(1))
    assert emb.eval()(torch.tensor([0])).shape == (1, 4)
    emb.table.check_integrity()


def test_lfu_keeps_the_most_updated() -> None:
    emb = DynamicEmbedding(4, 16, eviction="lfu")
    for _ in range(2):
        learn(emb, torch.arange(15))
    learn(emb, [50])
    learn(emb, [51])  # the newest, and rarer than all others
    assert emb.lookup(torch.tensor([*range(15), 50, 51]))[1].tolist() == [0] * 15 + [3, 0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"capacity": 0}, "0"),
        ({"capacity": -1}, "-1"),
        ({"capacity": 1.5}, "1.5"),
        ({"capacity": True}, "True"),
        ({"capacity": "2 gigs"}, "2 gigs"),
        ({"capacity": "1KiB"}, "1KiB"),
        ({"optimizer": {"name": "sgdd"}}, "sgdd"),
        ({"optimizer": {"rate": 1}}, "rate"),
        ({"optimizer": {"name": "adam", "lr": -1}}, "-1"),
        ({"eviction": "fifo"}, "fifo"),
        ({"admission": {"min_count": 0}}, "0"),
        ({"admission": {"count": 2}}, "count"),
        ({"dtype": torch.float64}, "float64"),
        ({"device": "tpu"}, "tpu"),
        ({"device": "cuda"}, "the device 'cuda' needs"),
        ({"dim": 0}, "0"),
        ({"init_scale": -1}, "-1"),
    ],
)
def test_an_invalid_setting_is_reported_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DynamicEmbedding(**{"dim": 4, "capacity": 16, **settings})


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (torch.tensor([1.0]), "float32"),
        (torch.tensor([True]), "bool"),
        (torch.tensor([1j]), "complex64"),
        ([1, 2], "list"),
        (np.array([1]), "ndarray"),
        (torch.tensor([2**63], dtype=torch.uint64), "9223372036854775808"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), "meta"),
        (torch.eye(3, dtype=torch.int64).to_sparse(), "sparse"),
    ],
)
def test_invalid_ids_are_reported(ids: Any, named: str, mode: str) -> None:
    emb = DynamicEmbedding(4, 16).train(mode == "train")
    for call in (emb, emb.lookup, emb.forget, emb.export, emb.pool):
        with pytest.raises(ValueError, match=named):
            call(ids)
    assert len(emb) == 0


def test_a_capacity_in_bytes_is_kept() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        emb = DynamicEmbedding(16, "1MiB", dtype=dtype)
        assert emb.table.bytes_by_tier()["device"] <= 2**20
        assert emb.capacity.num_slots > 6000


def test_a_module_without_rows_is_true() -> None:
    emb = DynamicEmbedding(4, 16)
    assert len(emb) == 0
    assert emb
    assert list(emb.parameters()) == []
    assert "dim=4" in repr(nn.Sequential(emb, nn.Linear(4, 1)))


def test_the_learning_rate_can_change_during_training() -> None:
    emb = DynamicEmbedding(4, 16, optimizer={"name": "sgd", "lr": 1.0})
    learn(emb, [1])
    emb.set_lr(0.25)
    learn(emb, [1])
    torch.testing.assert_close(emb.lookup(torch.tensor(1))[0], values(torch.tensor(1), 4) - 1.25)
    with pytest.raises(ValueError, match="nan"):
        emb.set_lr(float("nan"))


def test_it_trains_beside_a_torch_optimizer() -> None:
    torch.manual_seed(0)
    emb, head = DynamicEmbedding(8, 1024, optimizer={"name": "rowwise-adagrad", "lr": 0.3}), nn.Linear(8, 1)
    adam = torch.optim.Adam(head.parameters(), lr=0.05)
    ids = torch.randint(0, 200, (4000,))
    labels = ((ids * 7919) % 2).float()
    for epoch in range(4):
        total = 0.0
        for part in torch.arange(4000).split(100):
            loss = nn.functional.binary_cross_entropy_with_logits(head(emb(ids[part]))[:, 0], labels[part])
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item() / 40
        assert epoch == 0 or total < 0.3
