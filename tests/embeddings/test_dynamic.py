"""DynamicEmbedding as anyone may use it in plain torch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from springtide_client.first_values import first_values
from torch import nn

from embeddings import DynamicEmbedding
from embeddings.errors import SpillError


def values(ids: torch.Tensor, dim: int = 8, seed: int = 0) -> torch.Tensor:
    flat = ids.reshape(-1).numpy().astype(np.int64)
    rows = first_values(np.zeros(len(flat), np.uint16), flat, dim=dim, seed=seed, scale=0.01)
    return torch.from_numpy(rows).reshape(*ids.shape, dim)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4), (1, 2, 3, 4)])
def test_ids_of_any_shape_give_rows_of_that_shape(shape: tuple[int, ...]) -> None:
    emb = DynamicEmbedding(8, 64)
    ids = torch.arange(int(np.prod(shape))).reshape(shape)
    rows = emb(ids)
    assert rows.shape == (*shape, 8)
    assert torch.equal(rows.detach(), values(ids))


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_eval_and_no_grad_create_nothing_and_give_first_values(mode: str) -> None:
    emb = DynamicEmbedding(8, 64, seed=3)
    ids = torch.tensor([[5, -7], [2**62, 5]])
    if mode == "eval":
        emb.eval()
        rows = emb(ids)
    else:
        with torch.no_grad():
            rows = emb(ids)
    assert torch.equal(rows, values(ids, seed=3))
    assert len(emb) == 0
    assert emb.num_unknown == 4
    _, status = emb.lookup(ids)
    assert status.tolist() == [[1, 1], [1, 1]]


def test_the_gradient_takes_a_rowwise_adagrad_step() -> None:
    emb = DynamicEmbedding(4, 64, optimizer={"name": "rowwise-adagrad", "lr": 0.5})
    ids = torch.tensor([1, 2, 1])
    before = emb(ids)
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    (before * weight).sum().backward()
    grad = weight[0] + weight[2]
    expected = values(torch.tensor(1), 4) - 0.5 * grad / (grad.square().mean().sqrt() + 1e-8)
    rows, status = emb.lookup(torch.tensor([1, 9]))
    torch.testing.assert_close(rows[0], expected)
    assert status.tolist() == [0, 1]
    assert torch.isnan(rows[1]).all()


def test_two_forwards_before_one_backward_both_count() -> None:
    emb = DynamicEmbedding(4, 16)
    (emb(torch.tensor([1, 2])).sum() + emb(torch.tensor([2, 3])).sum()).backward()
    assert torch.equal(emb.get_extra_state()["counts"].sort().values, torch.tensor([1, 1, 2]))
    emb.table.check_integrity()


def test_a_stranger_in_a_reused_slot_receives_no_gradient() -> None:
    emb = DynamicEmbedding(4, 16)
    kept = emb(torch.arange(16))
    others = emb(torch.arange(100, 400))  # far more than there is room for
    kept.sum().backward()
    del others
    assert torch.equal(emb.lookup(torch.arange(16))[1], torch.zeros(16, dtype=torch.uint8))
    counts = emb.get_extra_state()["counts"]
    assert counts.sum() == 16
    emb.table.check_integrity()


def test_a_forward_without_backward_holds_nothing_for_ever() -> None:
    emb = DynamicEmbedding(4, 16)
    for start in range(0, 400, 20):
        emb(torch.arange(start, start + 20))
    emb(torch.tensor([1])).sum().backward()
    assert len(emb) <= 16
    emb.table.check_integrity()


def test_an_id_forgotten_between_forward_and_backward_stays_forgotten() -> None:
    emb = DynamicEmbedding(4, 16)
    rows = emb(torch.tensor([1, 2]))
    emb.forget(torch.tensor([1]))
    rows.sum().backward()
    assert emb.lookup(torch.tensor([1, 2]))[1].tolist() == [3, 0]


def test_without_a_spill_an_evicted_row_is_forgotten() -> None:
    emb = DynamicEmbedding(4, 16)
    for start in range(0, 64, 16):
        emb(torch.arange(start, start + 16)).sum().backward()
    status = emb.lookup(torch.arange(64))[1]
    assert set(status.tolist()) == {0, 3}


def test_with_a_spill_a_small_capacity_changes_nothing(tmp_path: Path) -> None:
    large, small = DynamicEmbedding(8, 4096), DynamicEmbedding(8, 32, spill=tmp_path / "spill")
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(0, 500, (10, 20), generator=generator)
        weight = torch.randn(10, 20, 8, generator=generator)
        for emb in (large, small):
            (emb(ids) * weight).sum().backward()
    one, other = (emb.lookup(torch.arange(500)) for emb in (large, small))
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[0].nan_to_num(7), other[0].nan_to_num(7))
    small.close()
    assert not (tmp_path / "spill").exists()


def test_a_state_dict_brings_every_row_back(tmp_path: Path) -> None:
    emb = DynamicEmbedding(8, 32, spill=tmp_path / "spill")
    model = nn.ModuleDict({"emb": emb, "head": nn.Linear(8, 1)})
    for start in range(0, 200, 50):
        emb(torch.arange(start, start + 50)).square().sum().backward()
    emb.forget(torch.tensor([7]))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    fresh = nn.ModuleDict({"emb": DynamicEmbedding(8, 4096), "head": nn.Linear(8, 1)})
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    ids = torch.tensor([i for i in range(200) if i != 7])
    assert torch.equal(fresh["emb"].lookup(ids)[0], emb.lookup(ids)[0])
    assert fresh["emb"].lookup(torch.tensor([7]))[1].item() == 1
    emb.close()


def test_a_folder_that_is_no_spill_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    with pytest.raises(SpillError, match=r"thesis\.txt"):
        DynamicEmbedding(8, 32, spill=tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_size_in_bytes_is_kept() -> None:
    emb = DynamicEmbedding(16, "1MiB")
    assert emb.table.bytes_by_tier()["device"] <= 2**20
    assert emb.capacity.num_slots > 6000


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"capacity": 0}, "0"),
        ({"capacity": "2 gigs"}, "2 gigs"),
        ({"optimizer": {"name": "sgdd"}}, "sgdd"),
        ({"optimizer": {"rate": 1}}, "rate"),
        ({"eviction": "fifo"}, "fifo"),
        ({"dtype": torch.float64}, "float64"),
        ({"device": "tpu"}, "tpu"),
        ({"dim": 0}, "0"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DynamicEmbedding(**{"dim": 4, "capacity": 16, **settings})  # type: ignore[arg-type]


def test_it_learns_beside_a_torch_optimizer() -> None:
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
