import numpy as np
import pytest
import torch
from torch import nn

from springtide.app.models.interactions.logistic import Logistic
from springtide.app.models.losses.config import LINKS as LINKS_OF_LOSSES
from springtide.app.models.losses.config import LabelLoss
from springtide.app.models.losses.loss import Loss
from springtide.app.models.losses.pointwise import huber
from springtide.app.models.value_scale import ValueScale
from springtide_client.links import output_of, value_of
from springtide_client.schema import LINKS
from tests.support.model_specs import spec_of_sizes

VALUES = torch.tensor([[0.0], [3.0], [250.0], [7.0]], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)


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
    loss, weight = Loss((LabelLoss(name=name, delta=0.7),), nn.Module())(logits, VALUES, WEIGHTS)
    targets = torch.log1p(VALUES) if name == "msle" else VALUES
    if name == "huber":
        each = nn.functional.huber_loss(again, targets, delta=0.7, reduction="none")
    else:
        each = 0.5 * nn.functional.mse_loss(again, targets, reduction="none")
    expected = (each[:, 0] * WEIGHTS).sum()
    torch.testing.assert_close(loss, expected)
    assert weight == WEIGHTS.sum()
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
