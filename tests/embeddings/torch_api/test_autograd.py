"""DynamicEmbedding under autograd: which graphs update which rows, and when they release them."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from springtide import DynamicEmbedding


def sgd(lr: float = 1.0, capacity: int = 64) -> DynamicEmbedding:
    return DynamicEmbedding(4, capacity, optimizer={"name": "sgd", "lr": lr})


def row(emb: DynamicEmbedding, i: int) -> torch.Tensor:
    return emb.lookup(torch.tensor(i))[0]


def counts(emb: DynamicEmbedding) -> dict[int, int]:
    table = emb.export()
    return dict(zip(table["ids"].to_pylist(), table["count"].to_pylist(), strict=True))


def test_the_gradient_takes_a_rowwise_adagrad_step() -> None:
    emb = DynamicEmbedding(4, 64, optimizer={"name": "rowwise-adagrad", "lr": 0.5})
    before = emb(torch.tensor([1, 2, 1]))
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    (before * weight).sum().backward()
    grad = weight[0] + weight[2]
    torch.testing.assert_close(row(emb, 1), before[0].detach() - 0.5 * grad / (grad.square().mean().sqrt() + 1e-8))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8),
    "adam": lambda p: torch.optim.SparseAdam(p, lr=0.1, eps=1e-8),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_equal_those_of_torch_optimizers(name: str) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(20, 4)
    emb = DynamicEmbedding.from_pretrained(matrix, optimizer={"name": name, "lr": 0.1, "eps": 1e-8})
    # adam: torch counts the steps of the whole matrix, the table those of each row; so every id is in every batch
    static = nn.Embedding.from_pretrained(matrix.clone(), freeze=False, sparse=name == "adam")
    optimizer = OPTIMIZERS[name](static.parameters())
    for _ in range(10):
        ids, weight = torch.cat([torch.arange(20), torch.randint(0, 20, (30,))]), torch.randn(50, 4)
        for model in (emb, static):
            ((model(ids) - weight).square().mean(1) * weight[:, 0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(emb.lookup(torch.arange(20))[0], static.weight.detach(), rtol=0, atol=1e-5)


def test_ftrl_sets_rows_without_signal_to_zero() -> None:
    emb = DynamicEmbedding(4, 64, optimizer={"name": "ftrl", "lr": 0.1, "l1": 5.0}, init_scale=0)
    (emb(torch.tensor([1, 2])) * torch.tensor([[0.1], [100.0]])).sum().backward()
    assert torch.equal(row(emb, 1), torch.zeros(4))
    assert (row(emb, 2) < 0).all()


def test_two_forwards_before_one_backward_are_two_steps() -> None:
    emb = sgd()
    first = emb(torch.tensor([1, 2]))
    ((first * 2).sum() + (emb(torch.tensor([2, 3])) * 3).sum()).backward()
    assert counts(emb) == {1: 1, 2: 2, 3: 1}
    torch.testing.assert_close(row(emb, 2), first[1].detach() - 5)
    assert emb.table.memory.num_pinned == 0
    emb.table.check_integrity()


def test_gradients_are_applied_at_once_and_not_accumulated() -> None:
    emb = sgd()
    start = emb(torch.tensor([1])).detach()[0]
    for _ in range(3):
        emb(torch.tensor([1])).sum().backward()
        assert emb.eval()(torch.tensor(1)).sum() < start.sum()
        emb.train()
    torch.testing.assert_close(row(emb, 1), start - 3)


def test_a_second_backward_through_one_graph_is_refused() -> None:
    emb = sgd()
    loss = emb(torch.tensor([1, 2])).square().sum()
    loss.backward(retain_graph=True)
    moved = row(emb, 1)
    with pytest.raises(ValueError, match="second backward"):
        loss.backward()
    assert torch.equal(row(emb, 1), moved)
    assert counts(emb) == {1: 1, 2: 1}


def test_another_key_in_a_reused_slot_receives_no_gradient() -> None:
    emb = DynamicEmbedding(4, 16)
    kept = emb(torch.arange(16))
    others = emb(torch.arange(100, 400))  # far more than there is room for
    kept.sum().backward()
    del others
    assert torch.equal(emb.lookup(torch.arange(16))[1], torch.zeros(16, dtype=torch.uint8))
    assert sum(counts(emb).values()) == 16
    emb.table.check_integrity()


def test_a_dropped_graph_releases_its_rows() -> None:
    emb = DynamicEmbedding(4, 16)
    rows = emb(torch.arange(16))
    assert emb.table.memory.num_pinned == 1
    pooled = rows.sum() * 2
    del rows
    assert emb.table.memory.num_pinned == 1
    del pooled
    assert emb.table.memory.num_pinned == 0
    for start in range(0, 400, 20):
        emb(torch.arange(start, start + 20))
    emb(torch.tensor([1])).sum().backward()
    assert len(emb) <= 16
    emb.table.check_integrity()


def test_a_graph_collected_in_another_thread_releases_its_rows() -> None:
    emb = DynamicEmbedding(4, 16)

    class Cycle:
        def __init__(self) -> None:
            self.me, self.rows = self, emb(torch.arange(16))

    gc.disable()
    try:
        Cycle()
        assert emb.table.memory.num_pinned == 1
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
    finally:
        gc.enable()
    assert emb.table.memory.num_pinned == 0
    emb.table.check_integrity()


def test_an_id_forgotten_between_forward_and_backward_stays_forgotten() -> None:
    emb = DynamicEmbedding(4, 16)
    rows = emb(torch.tensor([1, 2]))
    emb.forget(torch.tensor([1]))
    rows.sum().backward()
    assert emb.lookup(torch.tensor([1, 2]))[1].tolist() == [3, 0]


def test_the_object_can_be_dropped_before_its_graph() -> None:
    emb, head = sgd(), nn.Linear(4, 1)
    loss = head(emb(torch.arange(3))).sum()
    del emb
    loss.backward()
    assert head.weight.grad is not None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_its_row_unchanged(bad: float) -> None:
    emb = DynamicEmbedding(4, 64)
    before = emb(torch.tensor([1, 2]))
    (before * torch.tensor([[1.0, bad, 1.0, 1.0], [1.0] * 4])).sum().backward()
    assert torch.equal(row(emb, 1), before[0].detach())
    assert not torch.equal(row(emb, 2), before[1].detach())
    assert emb.counters()["refused_gradients"] == 1
    assert counts(emb) == {1: 1, 2: 1}


def test_a_scaled_loss_is_unscaled_by_a_hook_and_overflow_changes_no_row() -> None:
    emb, plain, scale = sgd(), sgd(), 2.0**16
    ids = torch.tensor([1, 2])
    for loss_scale, factor in ((scale, 1.0), (scale, 3e38)):
        rows = emb(ids)
        rows.register_hook(lambda grad, scale=loss_scale: grad / scale)
        (rows.sum() * factor * loss_scale).backward()
    plain(ids).sum().backward()
    assert torch.equal(emb.lookup(ids)[0], plain.lookup(ids)[0])
    assert emb.counters()["refused_gradients"] == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_updates_once(reentrant: bool) -> None:
    emb, plain = sgd(0.1), sgd(0.1)
    torch.manual_seed(0)
    head, ids, dense = nn.Linear(4, 1), torch.tensor([1, 2, 1]), torch.randn(3, 4, requires_grad=True)

    def part(table: DynamicEmbedding) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: head((table(ids) + x).tanh())

    for _ in range(3):
        checkpoint(part(emb), dense, use_reentrant=reentrant).square().sum().backward()
        part(plain)(dense).square().sum().backward()
    assert torch.equal(emb.lookup(ids)[0], plain.lookup(ids)[0])
    assert counts(emb) == counts(plain) == {1: 6, 2: 3}
    gc.collect()
    assert emb.table.memory.num_pinned == 0


def test_a_bfloat16_model_updates_float32_rows() -> None:
    emb = sgd()
    head = nn.Linear(4, 1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head(emb(torch.tensor([1, 2]))).sum()
    loss.backward()
    assert counts(emb) == {1: 1, 2: 1}
    assert head.weight.grad is not None


def test_a_partial_backward_updates_only_what_it_reaches() -> None:
    emb, head = sgd(), nn.Linear(4, 1)
    loss = head(emb(torch.tensor([1]))).sum()
    torch.autograd.grad(loss, head.weight, retain_graph=True)
    assert counts(emb) == {1: 0}
    loss.backward()
    assert counts(emb) == {1: 1}


def test_a_gradient_penalty_can_use_the_rows() -> None:
    emb, head = sgd(), nn.Linear(4, 4)
    rows = emb(torch.tensor([1, 2]))
    (slope,) = torch.autograd.grad(head(rows).tanh().sum(), rows, create_graph=True)
    slope.square().sum().backward()
    assert counts(emb) == {1: 1, 2: 1}
    assert head.weight.grad is not None


@pytest.mark.filterwarnings("ignore")  # torch's compiler ignores its own warnings, but not when warnings are errors
def test_a_compiled_model_gives_the_same_updates() -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.head = sgd(0.1), head

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            both = torch.cat([self.emb(ids[:, 0]), self.emb.pool(ids)], 1)
            logits: torch.Tensor = self.head(both.tanh())
            return logits

    plain, other = Model(), Model()
    compiled = torch.compile(other, backend="eager")
    for start in range(3):
        ids = torch.arange(start, start + 6).reshape(3, 2)
        for model in (plain, compiled):
            model(ids).square().sum().backward()
    assert torch.equal(
        plain.emb.lookup(torch.arange(9))[0].nan_to_num(), other.emb.lookup(torch.arange(9))[0].nan_to_num()
    )
    assert counts(plain.emb) == counts(other.emb)
    with torch.no_grad():
        assert torch.equal(plain(ids), compiled(ids))
