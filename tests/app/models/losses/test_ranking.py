import math

import pytest
import torch

from springtide.app.models.losses.ranking import listwise, pairwise

GROUPS = torch.tensor([0, 2, 0, 2, 1, 0, 2, 3])
LABELS = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.4, 0.0, 0.0], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0, 0.0, 3.0, 1.0], dtype=torch.float64)


def logits(seed=0):
    return torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def members(groups):
    return [range(8)] if groups is None else [[n for n in range(8) if groups[n] == g] for g in range(4)]


def plain_pairwise(z, groups):
    total = torch.zeros((), dtype=torch.float64)
    for group in members(groups):
        weight = sum(float(WEIGHTS[n]) for n in group)
        for i in group:
            for j in group:
                if LABELS[i] > LABELS[j]:
                    share = (LABELS[i] - LABELS[j]) * WEIGHTS[i] * WEIGHTS[j] / weight
                    total = total + share * torch.log1p(torch.exp(z[j] - z[i]))
    return total


def plain_listwise(z, groups):
    total = torch.zeros((), dtype=torch.float64)
    for group in members(groups):
        everything = sum(WEIGHTS[n] * torch.exp(z[n]) for n in group)
        for n in group:
            total = total - WEIGHTS[n] * LABELS[n] * torch.log(torch.exp(z[n]) / everything)
    return total


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["batch", "groups"])
@pytest.mark.parametrize(("loss", "plain"), [(pairwise, plain_pairwise), (listwise, plain_listwise)])
def test_the_loss_and_its_gradient_equal_plain_loops(loss, plain, groups):
    ours, theirs = logits(), logits()
    value, expected = loss(ours, LABELS, WEIGHTS, groups), plain(theirs, groups)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("loss", [pairwise, listwise])
def test_a_shift_of_all_scores_changes_nothing(loss):
    torch.testing.assert_close(loss(logits() + 5, LABELS, WEIGHTS, GROUPS), loss(logits(), LABELS, WEIGHTS, GROUPS))


@pytest.mark.parametrize("loss", [pairwise, listwise])
def test_gradients_have_the_logistic_scale_whatever_the_batch_size(loss):
    for num in (20, 2000):
        z, labels = torch.zeros(num, requires_grad=True), (torch.arange(num) % 10 == 0).float()
        loss(z, labels, torch.ones(num), None).backward()
        factor = 0.5 if loss is pairwise else 1.0
        assert z.grad[0].item() == pytest.approx(-factor * (0.9 if loss is pairwise else 1 - 0.1), rel=0.2)
        assert z.grad[1].item() == pytest.approx(factor * 0.1, rel=0.01)


@pytest.mark.parametrize("loss", [pairwise, listwise])
def test_far_scores_and_batches_without_weight_give_finite_gradients(loss):
    for weights in (torch.ones(3), torch.zeros(3), torch.tensor([0.0, 1.0, 1.0])):
        z = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
        value = loss(z, torch.tensor([0.0, 1.0, 0.0]), weights, torch.tensor([0, 0, 0]))
        value.backward()
        assert math.isfinite(value.item())
        assert torch.isfinite(z.grad).all()
        assert (z.grad[weights == 0] == 0).all()


def test_a_group_of_one_label_teaches_pairs_nothing():
    z = logits()
    pairwise(z, LABELS, WEIGHTS, GROUPS).backward()
    assert z.grad[4] == z.grad[7] == 0
