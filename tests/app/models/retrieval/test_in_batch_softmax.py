import math

import pytest
import torch

from springtide.app.models.retrieval.in_batch_softmax import in_batch_softmax


def plain_loss(users, items, ids, log_probabilities, weights, temperature):
    """Sample by sample, in float64 and plain Python."""
    total = torch.zeros((), dtype=torch.float64)
    for i, user in enumerate(users):
        others = [j for j in range(len(ids)) if j == i or ids[j] != ids[i]]
        scores = torch.stack([(user @ items[j]) / temperature - log_probabilities[j] for j in others])
        total = total - weights[i] * (scores[others.index(i)] - torch.logsumexp(scores, 0))
    return total


def draw(num=7, dim=3):
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randn(num, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    ids = torch.tensor([4, 9, 4, 1, 2, 9, 4])[:num]
    log_probabilities = torch.log(torch.rand(num, generator=generator, dtype=torch.float64))
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.5, 1.0, 0.0], dtype=torch.float64)[:num]
    return users.requires_grad_(), items.requires_grad_(), ids, log_probabilities, weights


def test_loss_and_gradients_equal_a_plain_reference():
    users, items, ids, log_probabilities, weights = draw()
    loss = in_batch_softmax(users, items, ids, log_probabilities, weights, temperature=0.2, block=100)
    mine = torch.autograd.grad(loss, (users, items))
    plain = plain_loss(users, items, ids.tolist(), log_probabilities, weights, 0.2)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    for gradient, reference in zip(mine, torch.autograd.grad(plain, (users, items)), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5)


def test_samples_of_another_block_are_no_negatives():
    users, items, ids, log_probabilities, weights = draw()
    loss = in_batch_softmax(users, items, ids, log_probabilities, weights, temperature=0.2, block=4)
    parts = [slice(0, 4), slice(4, 7)]
    expected = sum(
        plain_loss(users[p], items[p], ids[p].tolist(), log_probabilities[p], weights[p], 0.2).item() for p in parts
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_a_positive_sample_has_no_loss_and_no_gradient():
    users, items, ids, log_probabilities, weights = draw()
    loss = in_batch_softmax(users, items, ids, log_probabilities, 0 * weights, temperature=0.2, block=4)
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, (users, items)))


def test_the_correction_makes_a_popular_item_no_worse_than_a_rare_one():
    """Equal vectors, one item three times as frequent: corrected, the four items of the batch count as two equal ones.

    Of user 0 with the rare item: exp(s) / q weighs 1 / 0.25 against 3 times 1 / 0.75, thus a half.
    """
    ones, ids = torch.ones(4, 1), torch.tensor([7, 8, 8, 8])
    log_probabilities = torch.log(torch.tensor([0.25, 0.75, 0.75, 0.75]))
    weights = torch.tensor([1.0, 0, 0, 0])
    loss = in_batch_softmax(ones, ones, ids, log_probabilities, weights, temperature=1.0, block=4)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-5)
