import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from springtide.app.models.losses.config import LabelConfig, LabelLoss, label_losses
from springtide.app.models.losses.loss import Loss
from springtide.app.models.losses.task_weights import add_task_weights
from springtide_client.features import Features
from springtide_client.schema import Schema

NAN = float("nan")
LABELS = torch.tensor([[1.0, 0.0], [0.0, NAN], [NAN, 1.0], [1.0, 1.0]])
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 0.0])


def some_logits():
    return torch.randn(4, 2, generator=torch.Generator().manual_seed(1)).requires_grad_()


def plain(logits, number):
    known = ~torch.isnan(LABELS[:, number])
    return binary_cross_entropy_with_logits(
        logits[known, number], LABELS[known, number], WEIGHTS[known], reduction="sum"
    )


def test_without_settings_it_is_the_sum_of_logistic_losses():
    logits = some_logits()
    loss, weight = Loss((), nn.Module())(logits, LABELS, WEIGHTS)
    torch.testing.assert_close(loss, plain(logits, 0) + plain(logits, 1))
    assert weight.item() == 3.0 + 1.5
    assert Loss((LabelLoss(), LabelLoss()), nn.Module())(logits, LABELS, WEIGHTS)[0] == loss


def test_a_label_counts_as_its_weight_says():
    logits = some_logits()
    loss, _ = Loss((LabelLoss(weight=3.0), LabelLoss(weight=0.25)), nn.Module())(logits, LABELS, WEIGHTS)
    torch.testing.assert_close(loss, 3 * plain(logits, 0) + 0.25 * plain(logits, 1))


def test_learned_uncertainty_is_that_of_the_paper():
    net = nn.Module()
    add_task_weights(net, 2)
    net.task_weights.log_variances_L.data = torch.tensor([0.3, -0.7])
    logits, variances = some_logits(), torch.tensor([0.3, -0.7], requires_grad=True)
    loss, _ = Loss((LabelLoss(), LabelLoss()), net)(logits, LABELS, WEIGHTS)
    parts = torch.stack([plain(logits, 0), plain(logits, 1)])
    expected = (torch.exp(-variances) * parts + 0.5 * variances * torch.tensor([3.0, 1.5])).sum()
    torch.testing.assert_close(loss, expected)
    loss.backward(retain_graph=True)
    expected.backward()
    torch.testing.assert_close(net.task_weights.log_variances_L.grad, variances.grad)


def test_a_weight_counts_beside_a_learned_one_and_a_label_of_weight_0_learns_none():
    gradients = []
    for weight in (1.0, 3.0, 0.0):
        net = nn.Module()
        add_task_weights(net, 2)
        loss, _ = Loss([LabelLoss(), LabelLoss(weight=weight)], net)(some_logits(), LABELS, WEIGHTS)
        loss.backward()
        gradients.append(net.task_weights.log_variances_L.grad[1])
    torch.testing.assert_close(gradients[1], 3 * gradients[0])  # so the variance ends where it would end
    assert gradients[0] != 0
    assert gradients[2] == 0


def test_a_name_that_the_net_uses_itself_is_an_error():
    net = nn.Module()
    net.task_weights = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="task_weights"):
        add_task_weights(net, 2)


@pytest.mark.parametrize("uncertainty", [False, True])
def test_gradients_by_final_scores_are_those_of_autograd_and_keep_the_wide_parts_logistic_ones(uncertainty):
    net, again = nn.Module(), nn.Module()
    if uncertainty:
        add_task_weights(net, 2)
        add_task_weights(again, 2)
    labels = (LabelLoss(weight=2.0), LabelLoss(name="focal"))
    logits, errors = some_logits(), torch.arange(8.0).view(4, 2)
    gradient = Loss(labels, net).gradient(logits.detach(), LABELS, WEIGHTS, errors)
    loss, weight = Loss(labels, again)(logits, LABELS, WEIGHTS)
    loss.backward()
    assert torch.equal(gradient.errors_NL[:, 0], 2 * errors[:, 0])
    assert torch.equal(gradient.errors_NL[:, 1], logits.grad[:, 1])
    assert (gradient.loss, gradient.weight) == (loss, weight)
    if uncertainty:
        assert torch.equal(net.task_weights.log_variances_L.grad, again.task_weights.log_variances_L.grad)


def test_a_net_with_a_loss_of_its_own_is_asked():
    class Own(nn.Module):
        def loss(self, logits_NL, labels_NL, weights_N):
            return (logits_NL.square() * weights_N[:, None]).sum()

    logits = some_logits()
    found = Loss((), Own()).gradient(logits.detach(), LABELS, WEIGHTS, torch.zeros(4, 2))
    torch.testing.assert_close(found.errors_NL, 2 * logits * WEIGHTS[:, None])


def test_groups_are_numbered_by_the_values_of_their_field():
    schema = Schema(labels=("a", "b"), categorical=("user", "item"))
    settings = {"a": LabelConfig(loss="pairwise", group="item"), "b": LabelConfig(loss="listwise")}
    loss = Loss(label_losses("bce", settings, schema), nn.Module())
    ids = np.array([[5, 9], [5, -3], [6, 9]])
    groups = loss.groups_of(Features(ids, (), np.zeros((3, 0), np.float32)))
    np.testing.assert_array_equal(groups, [[1], [0], [1]])
    logits = torch.tensor([[0.0, 0.0], [7.0, 0.0], [2.0, 0.0]])
    labels = torch.tensor([[0.0, NAN], [0.0, NAN], [1.0, NAN]])
    value, _ = loss(logits, labels, torch.ones(3), torch.from_numpy(groups))
    assert value.item() == pytest.approx(np.log1p(np.exp(-2.0)) / 2)  # the second sample has another item


def test_settings_that_do_not_fit_are_errors():
    schema = Schema(labels=("a",), categorical=("user",))
    with pytest.raises(ValueError, match=r'group goes with pairwise or listwise, not with loss = "bce"'):
        label_losses("bce", {"a": LabelConfig(group="user")}, schema)
    with pytest.raises(ValueError, match=r'categorical \(user\), not "item"'):
        label_losses("pairwise", {"a": LabelConfig(group="item")}, schema)
