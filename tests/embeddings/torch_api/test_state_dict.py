"""A DynamicEmbedding in state_dicts, files and copies is the same."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from springtide import DynamicEmbedding
from springtide.embeddings.errors import OwnershipError

ADMISSION = {"min_count": 2, "sketch_bytes": "4KiB", "decay_every_samples": 100}
SETTINGS = {
    "plain": {},
    "adam, lfu": {"optimizer": {"name": "adam", "lr": 0.1}, "eviction": "lfu"},
    "admission": {"admission": ADMISSION, "optimizer": {"name": "adagrad", "lr": 0.1}},
    "bfloat16": {"dtype": torch.bfloat16, "optimizer": {"name": "ftrl", "lr": 0.1}},
    "no state": {"optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.01}},
}
IDS = torch.tensor([i for i in range(-10, 90) if i != 7])


def train(emb: DynamicEmbedding, seed: int = 0, num_batches: int = 8) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_batches):
        ids = torch.randint(-10, 90, (5, 8), generator=generator)
        (emb(ids) * torch.randn(5, 8, 8, generator=generator)).sum().backward()


def same(one: DynamicEmbedding, other: DynamicEmbedding) -> None:
    """Assert that both are equal, except for the order of rows and which ids were forgotten."""
    states = [emb.get_extra_state() for emb in (one, other)]
    for state in states:
        order = torch.argsort(state["ids"] + 1000 * state["features"], stable=True)
        state |= {name: state[name][order] for name in ("features", "ids", "values", "states", "counts", "last_seen")}
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, states[1][name]), name
        else:
            assert value == states[1][name], name
    for found, again in zip(one.lookup(IDS), other.lookup(IDS), strict=True):
        assert torch.equal(found.nan_to_num(9), again.nan_to_num(9))
    assert torch.equal(*(emb.eval()(IDS) for emb in (one, other)))
    for emb in (one, other):
        emb.train()
        emb.table.check_integrity()


class Model(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.users = DynamicEmbedding(8, 4096, **settings)
        self.items = DynamicEmbedding(4, 256)
        self.head = nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.cat([self.users(users), self.items.pool(items)], 1))[:, 0]
        return logits


@pytest.mark.parametrize("name", SETTINGS)
def test_training_continues_identically_after_a_load(name: str, tmp_path: Path) -> None:
    ticks = [iter(range(1000, 2000)) for _ in range(2)]
    settings = SETTINGS[name]
    saved = DynamicEmbedding(8, 4096, seed=5, init_scale=0.1, clock=lambda: next(ticks[0]), **settings)
    train(saved)
    saved.forget(torch.tensor([7]))
    saved.set_lr(0.03)
    torch.save(saved.state_dict(), tmp_path / "state.pt")
    loaded = DynamicEmbedding(8, 8192, clock=lambda: next(ticks[1]), **settings)
    train(loaded, seed=1)
    before = next(ticks[0])
    while next(ticks[1]) < before:
        pass
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
    assert loaded.lookup(torch.tensor(7))[1] == (2 if "admission" in settings else 1)  # seen, and unknown
    same(saved, loaded)
    train(saved, seed=2)
    train(loaded, seed=2)
    same(saved, loaded)


def test_the_state_of_a_whole_model_is_restored() -> None:
    models = [Model(admission=ADMISSION), Model(admission=ADMISSION)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        users, items = torch.randint(0, 50, (16,), generator=generator), torch.randint(0, 50, (16, 3))
        models[0](users, items).square().sum().backward()
    state = models[0].state_dict()
    assert [name for name in state if "extra" in name] == ["users._extra_state", "items._extra_state"]
    models[1].load_state_dict(state)
    users, items = torch.arange(60), torch.arange(120).reshape(60, 2)
    assert torch.equal(models[0].eval()(users, items), models[1].eval()(users, items))
    with pytest.raises(RuntimeError, match=r"users\._extra_state"):
        models[1].load_state_dict({name: value for name, value in state.items() if name != "users._extra_state"})


def test_it_works_in_a_sequential() -> None:
    model = nn.Sequential(DynamicEmbedding(4, 64), nn.Flatten(), nn.Linear(8, 1))
    model(torch.tensor([[1, 2], [3, 4]])).sum().backward()
    other = nn.Sequential(DynamicEmbedding(4, 16), nn.Flatten(), nn.Linear(8, 1))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(torch.tensor([[1, 9]])), model.eval()(torch.tensor([[1, 9]])))
    assert [name for name, _ in model.named_parameters()] == ["2.weight", "2.bias"]


def test_a_state_can_be_loaded_with_and_without_a_spill(tmp_path: Path) -> None:
    large, small = DynamicEmbedding(8, 4096), DynamicEmbedding(8, 16, spill=tmp_path / "a")
    train(large)
    small.load_state_dict(large.state_dict())
    assert len(small) == 16
    same(large, small)
    again = DynamicEmbedding(8, 32, spill=tmp_path / "b")
    again.load_state_dict(small.state_dict())
    again.load_state_dict(small.state_dict())
    same(large, again)
    for emb in (small, again):
        emb.close()
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_all_the_most_recently_seen_rows_are_kept() -> None:
    seconds = iter(range(1000))
    large = DynamicEmbedding(8, 4096, clock=lambda: next(seconds))
    for i in range(200):
        large(torch.tensor([i])).sum().backward()
    small = DynamicEmbedding(8, 16)
    small.load_state_dict(large.state_dict())
    assert sorted(small.export()["ids"].to_pylist()) == list(range(184, 200))
    assert small.counters()["lost"] == 184


def state() -> dict[str, Any]:
    emb = DynamicEmbedding(8, 64, admission=ADMISSION)
    emb(torch.tensor([1, 1, 2, 2, 3])).sum().backward()
    return emb.get_extra_state()


@pytest.mark.parametrize(
    ("settings", "change", "named"),
    [
        ({"dim": 4}, {}, "values"),
        ({"optimizer": {"name": "adam"}}, {}, "'rowwise-adagrad' cannot be trained on by 'adam'"),
        ({"admission": {"min_count": 2, "sketch_bytes": "8KiB"}}, {}, "4096 bytes"),
        ({}, {"ids": torch.tensor([1, 1, 0])}, "twice"),
        ({}, {"features": torch.tensor([0, 0, 5])}, "another table"),
        ({}, {"counts": torch.tensor([1.0, 2.0, 3.0])}, "counts"),
        ({}, {"values": torch.full((3, 8), torch.nan)}, "not finite"),
        ({}, {"last_seen": torch.tensor([1])}, "last_seen"),
        ({}, {"lr": float("nan")}, "lr"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(settings: dict[str, Any], change: Any, named: str) -> None:
    emb = DynamicEmbedding(**{"dim": 8, "capacity": 64, "admission": ADMISSION, **settings})
    emb(torch.tensor([8, 8])).sum().backward()
    before = emb.export()
    with pytest.raises(ValueError, match=named):
        emb.load_state_dict({"_extra_state": state() | change})
    with pytest.raises(ValueError, match="lacks"):
        emb.load_state_dict({"_extra_state": {"ids": torch.arange(3)}})
    assert emb.export().equals(before)


def test_a_state_is_not_changed_by_training() -> None:
    emb = DynamicEmbedding(8, 64)
    train(emb)
    saved = emb.state_dict()
    values = saved["_extra_state"]["values"].clone()
    train(emb, seed=1)
    assert torch.equal(saved["_extra_state"]["values"], values)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_is_independent(way: str) -> None:
    model = Model(admission=ADMISSION)
    train(model.users)
    if way == "deepcopy":
        other = copy.deepcopy(model)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    same(model.users, other.users)
    train(other.users, seed=1)
    assert not torch.equal(model.users.lookup(IDS)[0].nan_to_num(9), other.users.lookup(IDS)[0].nan_to_num(9))


def test_an_object_with_a_spill_cannot_be_copied(tmp_path: Path) -> None:
    emb = DynamicEmbedding(8, 64, spill=tmp_path / "spill")
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(OwnershipError, match="state_dict"):
            way(nn.Sequential(emb))
    emb.close()


def test_a_graph_from_before_a_load_raises() -> None:
    emb = DynamicEmbedding(8, 64)
    rows = emb(torch.tensor([1]))
    emb.load_state_dict(emb.state_dict())
    with pytest.raises(ValueError, match="a state was loaded"):
        rows.sum().backward()


def test_a_cast_module_returns_that_dtype_and_stores_its_own() -> None:
    model = nn.Sequential(DynamicEmbedding(8, 64), nn.Linear(8, 1))
    emb = model[0]
    ids = torch.arange(5)
    exact = emb(ids).detach()
    for cast, dtype in ((model.bfloat16, torch.bfloat16), (model.double, torch.float64), (model.half, torch.float16)):
        cast()
        assert emb(ids).dtype == dtype
        assert emb.eval()(ids).dtype == emb.pool(ids[None]).dtype == dtype
        emb.train()
        model(ids).sum().backward()
    model.float()
    assert emb.lookup(ids)[0].dtype == emb(ids).dtype == torch.float32
    assert emb.export()["count"].to_pylist() == [3] * 5
    assert not torch.equal(emb(ids), exact)


def test_rows_stay_on_their_device_if_the_module_is_moved() -> None:
    model = nn.Sequential(DynamicEmbedding(8, 64), nn.Linear(8, 1)).to("cpu", torch.float64).to("meta")
    assert model[0](torch.tensor([1])).device.type == "cpu"
    assert model[0].output_dtype == torch.float64
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):  # torch's own error
            DynamicEmbedding(8, 64).to("cuda")


def test_rows_cannot_be_in_shared_memory() -> None:
    emb = DynamicEmbedding(8, 64)
    for module in (emb, nn.Sequential(emb, nn.Linear(8, 1))):
        with pytest.raises(OwnershipError, match="state_dict"):
            module.share_memory()
    assert emb(torch.tensor([1])).dtype == torch.float32
