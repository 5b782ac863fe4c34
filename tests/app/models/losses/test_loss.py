import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from springtide.app.models.calibrated_model import ValueScale
from springtide.app.models.interactions.factorization_machines import Logistic
from springtide.app.models.losses.config import LINKS as LINKS_OF_LOSSES
from springtide.app.models.losses.config import LabelConfig, LabelLoss, label_losses
from springtide.app.models.losses.loss import (
    Loss,
    add_task_weights,
    binary_cross_entropy,
    focal,
    huber,
    listwise,
    pairwise,
)
from springtide_client.features import Features
from springtide_client.schema import LINKS, Schema
from springtide_client.targets import output_of, value_of
from tests.support.model_specs import spec_of_sizes

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


POINT_LOGITS = torch.tensor([-40.0, -2.0, -0.1, 0.0, 0.5, 3.0, 40.0], dtype=torch.float64)
POINT_LABELS = torch.tensor([1.0, 0.0, 1.0, 0.3, 0.0, 1.0, 0.0], dtype=torch.float64)
POINT_WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)


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
    ours, plain = POINT_LOGITS.clone().requires_grad_(), POINT_LOGITS.clone().requires_grad_()
    loss, expected = (
        focal(ours, POINT_LABELS, POINT_WEIGHTS, gamma=gamma, alpha=alpha),
        plain_focal(plain, POINT_LABELS, POINT_WEIGHTS, gamma, alpha),
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, plain.grad)


def test_focal_loss_without_gamma_is_the_logistic_loss():
    torch.testing.assert_close(
        focal(POINT_LOGITS, POINT_LABELS, POINT_WEIGHTS, gamma=0.0, alpha=None),
        binary_cross_entropy(POINT_LOGITS, POINT_LABELS, POINT_WEIGHTS),
    )


def test_focal_loss_of_a_far_logit_is_finite_in_float32():
    logits = torch.tensor([-200.0, 200.0, 0.0], requires_grad=True)
    focal(logits, torch.tensor([1.0, 0.0, 1.0]), torch.ones(3), gamma=2.0, alpha=None).backward()
    assert torch.isfinite(logits.grad).all()


RANKED_GROUPS = torch.tensor([0, 2, 0, 2, 1, 0, 2, 3])
RANKED_LABELS = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.4, 0.0, 0.0], dtype=torch.float64)
RANKED_WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0, 0.0, 3.0, 1.0], dtype=torch.float64)


def logits(seed=0):
    return torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def members(groups):
    return [range(8)] if groups is None else [[n for n in range(8) if groups[n] == g] for g in range(4)]


def plain_pairwise(z, groups):
    total = torch.zeros((), dtype=torch.float64)
    for group in members(groups):
        weight = sum(float(RANKED_WEIGHTS[n]) for n in group)
        for i in group:
            for j in group:
                if RANKED_LABELS[i] > RANKED_LABELS[j]:
                    share = (RANKED_LABELS[i] - RANKED_LABELS[j]) * RANKED_WEIGHTS[i] * RANKED_WEIGHTS[j] / weight
                    total = total + share * torch.log1p(torch.exp(z[j] - z[i]))
    return total


def plain_listwise(z, groups):
    total = torch.zeros((), dtype=torch.float64)
    for group in members(groups):
        everything = sum(RANKED_WEIGHTS[n] * torch.exp(z[n]) for n in group)
        for n in group:
            total = total - RANKED_WEIGHTS[n] * RANKED_LABELS[n] * torch.log(torch.exp(z[n]) / everything)
    return total


@pytest.mark.parametrize("groups", [None, RANKED_GROUPS], ids=["batch", "groups"])
@pytest.mark.parametrize(("loss", "plain"), [(pairwise, plain_pairwise), (listwise, plain_listwise)])
def test_the_loss_and_its_gradient_equal_plain_loops(loss, plain, groups):
    ours, theirs = logits(), logits()
    value, expected = loss(ours, RANKED_LABELS, RANKED_WEIGHTS, groups), plain(theirs, groups)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("loss", [pairwise, listwise])
def test_a_shift_of_all_scores_changes_nothing(loss):
    torch.testing.assert_close(
        loss(logits() + 5, RANKED_LABELS, RANKED_WEIGHTS, RANKED_GROUPS),
        loss(logits(), RANKED_LABELS, RANKED_WEIGHTS, RANKED_GROUPS),
    )


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
    pairwise(z, RANKED_LABELS, RANKED_WEIGHTS, RANKED_GROUPS).backward()
    assert z.grad[4] == z.grad[7] == 0


VALUES = torch.tensor([[0.0], [3.0], [250.0], [7.0]], dtype=torch.float64)
VALUE_WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)


def test_every_link_of_a_loss_is_one_that_servers_know():
    assert set(LINKS_OF_LOSSES.values()) == set(LINKS)


@pytest.mark.parametrize("link", LINKS)
def test_the_output_of_a_value_stands_for_it(link):
    values = np.array([0.0, 1e-6, 3.5, 1e6])
    np.testing.assert_allclose(value_of(link, output_of(link, values)), values, rtol=1e-9, atol=1e-12)
    assert np.isfinite(value_of(link, np.array([-1e4, 1e4], np.float64)).astype(np.float32)).all()


@pytest.mark.parametrize("name", ["mse", "msle", "huber"])
def test_the_loss_of_a_value_and_its_gradient_are_those_of_torch(name):
    logits = torch.randn(4, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    again = logits.detach().clone().requires_grad_()
    loss, weight = Loss((LabelLoss(name=name, delta=0.7),), nn.Module())(logits, VALUES, VALUE_WEIGHTS)
    targets = torch.log1p(VALUES) if name == "msle" else VALUES
    if name == "huber":
        each = nn.functional.huber_loss(again, targets, delta=0.7, reduction="none")
    else:
        each = 0.5 * nn.functional.mse_loss(again, targets, reduction="none")
    expected = (each[:, 0] * VALUE_WEIGHTS).sum()
    torch.testing.assert_close(loss, expected)
    assert weight == VALUE_WEIGHTS.sum()
    loss.backward()
    expected.backward()
    torch.testing.assert_close(logits.grad, again.grad)


def test_running_statistics_are_those_of_all_samples():
    scale, draw = ValueScale(("logit", "log1p", "identity")), torch.Generator().manual_seed(0)
    labels, weights = 300 * torch.rand(90, 3, generator=draw), torch.rand(90, generator=draw)
    labels[::7, 1] = torch.nan
    for start in range(0, 90, 13):
        scale.observe(labels[start : start + 13], weights[start : start + 13])
    for number, targets in ((1, torch.log1p(labels[:, 1])), (2, labels[:, 2])):
        known = ~torch.isnan(targets)
        mean = np.average(targets[known], weights=weights[known])
        variance = np.average((targets[known] - mean) ** 2, weights=weights[known])
        assert scale.mean_L[number].item() == pytest.approx(mean, rel=1e-4)
        assert scale.variance_L[number].item() == pytest.approx(variance, rel=1e-3)
    assert scale.mean_L[0] == scale.count_L[0] == 0


def test_one_absurd_value_among_many_is_not_remembered_as_it_is():
    scale, draw = ValueScale(("identity",)), torch.Generator().manual_seed(0)
    values = 10 + torch.randn(2000, 1, generator=draw)
    scale.observe(values, torch.ones(2000))
    before = scale.mean_L.item(), scale.variance_L.item()
    assert before == pytest.approx((10, 1), rel=0.1)
    values[7] = 1.7e18
    scale.observe(values, torch.ones(2000))
    assert scale.mean_L.item() == pytest.approx(before[0], abs=0.1)
    assert scale.variance_L.item() < 5
    for _ in range(6):  # another world is followed all the same
        scale.observe(values * 0 + 1e6, torch.ones(2000))
    assert scale.mean_L.item() > 1e5


def test_beyond_a_hundred_standard_deviations_an_error_counts_linearly():
    net = Logistic(type(spec := spec_of_sizes(1, labels=1))(**{**vars(spec), "links": ("identity",)}))
    net.observe_labels(torch.zeros(2000, 1), torch.randn(2000, 1), torch.ones(2000))
    outputs = torch.zeros(2, 1, requires_grad=True)
    Loss((LabelLoss(name="mse"),), net)(outputs, torch.tensor([[50.0], [1e12]]), torch.ones(2))[0].backward()
    ratio = (outputs.grad[1] / outputs.grad[0]).item()
    assert ratio == pytest.approx(2, rel=0.1)


def test_a_nets_errors_are_in_standard_deviations_and_at_first_in_those_of_the_batch():
    spec = spec_of_sizes(1, labels=1)
    spec = type(spec)(**{**vars(spec), "links": ("identity",)})
    net, loss = Logistic(spec), None
    nothing = torch.zeros(4, 0, 4), torch.zeros(4, 0, 1, 4), torch.zeros(4, 0), torch.zeros(4, 0)
    rows = torch.zeros(4, 1, 4, requires_grad=True)
    labels, weights = torch.tensor([[100.0], [300.0], [100.0], [300.0]]), torch.ones(4)
    loss = Loss((LabelLoss(name="mse"),), net)
    first = loss(net(rows, *nothing), labels, weights)[0]
    assert first.item() == pytest.approx(0.5 * 4)  # no output yet: each error is the batch's root mean square
    net.observe_labels(net(rows, *nothing).detach(), labels, weights)
    logits = net(rows, *nothing)
    assert (logits == 200).all()
    value = loss(logits, labels, weights)[0]
    assert value.item() == pytest.approx(0.5 * 4)  # each is one standard deviation away
    value.backward()
    gradients = rows.grad[:, 0, 0] / net.first_order_scale
    torch.testing.assert_close(gradients, torch.tensor([1.0, -1.0, 1.0, -1.0]))


def test_huber_is_half_the_square_near_zero():
    errors, weights = torch.tensor([0.5, -1.0, 4.0]), torch.ones(3)
    assert huber(errors[:2], weights[:2], delta=1.0) == 0.5 * errors[:2].square().sum()
    assert huber(errors[2:], weights[2:], delta=1.0) == 3.5
