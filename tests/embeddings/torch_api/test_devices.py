"""DynamicEmbedding gives the same on every device: rows, bags, status, exports and saved states."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from springtide import DynamicEmbedding
from springtide.kernels.ops import Ops

DIM, NUM_IDS = 6, 40


def place_of(ops: Ops) -> torch.device:
    """The name by which torch knows this device."""
    with ops.on_current_stream():
        there: torch.Tensor = ops.tensor_of(ops.xp.zeros(1, np.float32))
    return there.device


def pair(ops: Ops, **settings: Any) -> tuple[DynamicEmbedding, DynamicEmbedding]:
    """An object on the device and one on the CPU, large enough that nothing is evicted: buckets differ in size."""
    settings = {"optimizer": {"name": "rowwise-adagrad", "lr": 0.5}, "clock": lambda: 1000.0} | settings
    return DynamicEmbedding(DIM, 256, device=ops, **settings), DynamicEmbedding(DIM, 256, **settings)


def same(on_device: torch.Tensor, on_host: torch.Tensor) -> None:
    torch.testing.assert_close(on_device.cpu(), on_host, rtol=0, atol=1e-6, equal_nan=True)


def learn(pair: tuple[DynamicEmbedding, DynamicEmbedding], ops: Ops, num_batches: int = 3) -> None:
    """Train both with the same batches, in which ids repeat, and compare every row that they return."""
    generator = torch.Generator().manual_seed(4)
    for _ in range(num_batches):
        ids = torch.randint(0, NUM_IDS, (4, 5), generator=generator)
        weight = torch.randn(4, 5, DIM, generator=generator)
        rows = pair[0](ids.to(place_of(ops))), pair[1](ids)
        same(rows[0].detach(), rows[1].detach())
        (rows[0] * weight.to(rows[0].device)).sum().backward()
        (rows[1] * weight).sum().backward()


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_and_updates_equal_the_cpus(ops: Ops, name: str, dtype: torch.dtype) -> None:
    both = pair(ops, optimizer={"name": name, "lr": 0.1}, dtype=dtype)
    learn(both, ops)
    both[0].table.check_integrity()
    assert both[0].export() == both[1].export() or name == "adam"
    assert both[0].counters() == both[1].counters()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_and_their_gradients_equal_the_cpus(ops: Ops, mode: str) -> None:
    both, where = pair(ops), place_of(ops)
    ids, offsets = torch.tensor([3, 1, 3, 7, 2, 2]), torch.tensor([0, 2, 2, 5])
    for _ in range(2):
        pooled = both[0].pool(ids.to(where), offsets.to(where), mode), both[1].pool(ids, offsets, mode)
        same(pooled[0].detach(), pooled[1].detach())
        for bags in pooled:
            (bags * torch.arange(DIM, device=bags.device)).sum().backward()
    same(both[0].lookup(ids.to(where))[0], both[1].lookup(ids)[0])
    for emb in both:
        emb.eval()
    same(both[0].pool(ids.to(where), offsets.to(where), mode), both[1].pool(ids, offsets, mode))


def test_lookup_creates_nothing_and_returns_the_status(ops: Ops) -> None:
    both, where = pair(ops, admission={"min_count": 3, "sketch_bytes": "64KiB"}), place_of(ops)
    learn(both, ops)
    for emb in both:
        emb.forget(torch.tensor([1, 2, 3]))
        emb.eval()
    ids = torch.arange(NUM_IDS + 5).reshape(5, -1)
    found = both[0].lookup(ids.to(where)), both[1].lookup(ids)
    assert found[0][0].device == where
    same(found[0][0], found[1][0])
    assert found[0][1].cpu().tolist() == found[1][1].tolist()
    same(both[0](ids.to(where)), both[1](ids))
    same(both[0](ids), both[1](ids))  # ids on the host: so are the rows
    assert both[0].counters() == both[1].counters()
    assert len(both[0]) == len(both[1])


def test_a_spilled_row_comes_back_with_its_optimizer_state(ops: Ops, tmp_path: Path) -> None:
    where = place_of(ops)
    settings: dict[str, Any] = {"optimizer": {"name": "adam", "lr": 0.1}, "clock": lambda: 1000.0}
    small = DynamicEmbedding(DIM, 1, device=ops, spill=tmp_path / "spill", **settings)
    large = DynamicEmbedding(DIM, 4096, **settings)
    ids = torch.arange(3 * ops.width)
    for start in (0, ops.width, 2 * ops.width, 0):
        some = ids[start : start + ops.width]
        small(some.to(where)).square().sum().backward()
        large(some).square().sum().backward()
    assert small.counters()["recalled_from_spill"] > 0
    same(small.lookup(ids.to(where))[0], large.lookup(ids)[0])
    for name in ("ids", "count"):
        assert small.export()[name] == large.export()[name]
    small.close()


def test_a_state_can_be_loaded_on_another_device(ops: Ops) -> None:
    both = pair(ops)
    learn(both, ops)
    both[1].load_state_dict(both[0].state_dict())
    assert both[0].export() == both[1].export()
    both[0].load_state_dict(both[1].state_dict())
    learn(both, ops, 1)


def test_the_lowest_score_is_evicted(ops: Ops) -> None:
    emb, where = DynamicEmbedding(DIM, 1, device=ops, eviction="custom"), place_of(ops)
    ids = torch.arange(ops.width, device=where)
    emb(ids, scores=(ids - 5).abs().float()).sum().backward()
    emb(torch.tensor([-1], device=where), scores=torch.tensor([9.0], device=where)).sum().backward()
    assert math.isnan(emb.lookup(torch.tensor(5, device=where))[0][0])
    assert len(emb) == ops.width


def test_gradients_of_other_dtypes_and_layouts_are_accepted(ops: Ops) -> None:
    both, where = pair(ops), place_of(ops)
    for emb, ids in ((both[0], torch.arange(4, device=where)), (both[1], torch.arange(4))):
        rows = emb(ids).to(torch.bfloat16)
        (rows.T.contiguous() * 2).sum().backward()
    same(both[0].lookup(torch.arange(4, device=where))[0], both[1].lookup(torch.arange(4))[0])
