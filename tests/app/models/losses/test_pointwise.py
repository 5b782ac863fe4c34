import pytest
import torch

from springtide.app.models.losses.pointwise import binary_cross_entropy, focal

LOGITS = torch.tensor([-40.0, -2.0, -0.1, 0.0, 0.5, 3.0, 40.0], dtype=torch.float64)
LABELS = torch.tensor([1.0, 0.0, 1.0, 0.3, 0.0, 1.0, 0.0], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)


def plain_focal(logits, labels, weights, gamma, alpha):
    total = torch.zeros((), dtype=torch.float64)
    for z, y, w in zip(logits, labels, weights, strict=True):
        p, q = 1 / (1 + torch.exp(-z)), 1 / (1 + torch.exp(z))
        positive = (1.0 if alpha is None else alpha) * q**gamma * -torch.log(p)
        negative = (1.0 if alpha is None else 1 - alpha) * p**gamma * -torch.log(q)
        total = total + w * (y * positive + (1 - y) * negative)
    return total


@pytest.mark.parametrize(("gamma", "alpha"), [(0.0, None), (2.0, None), (2.0, 0.25), (0.5, 0.9)])
def test_focal_loss_and_its_gradient_are_those_of_the_paper(gamma, alpha):
    ours, plain = LOGITS.clone().requires_grad_(), LOGITS.clone().requires_grad_()
    loss, expected = (
        focal(ours, LABELS, WEIGHTS, gamma=gamma, alpha=alpha),
        plain_focal(plain, LABELS, WEIGHTS, gamma, alpha),
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, plain.grad)


def test_focal_loss_without_gamma_is_the_logistic_loss():
    torch.testing.assert_close(
        focal(LOGITS, LABELS, WEIGHTS, gamma=0.0, alpha=None), binary_cross_entropy(LOGITS, LABELS, WEIGHTS)
    )


def test_focal_loss_of_a_far_logit_is_finite_in_float32():
    logits = torch.tensor([-200.0, 200.0, 0.0], requires_grad=True)
    focal(logits, torch.tensor([1.0, 0.0, 1.0]), torch.ones(3), gamma=2.0, alpha=None).backward()
    assert torch.isfinite(logits.grad).all()
