import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from springtide.app.models.multitask.esmm import ESMM, conditional_logit, product_logit
from tests.support.model_specs import spec_of_sizes

SPEC = spec_of_sizes(2, 0, 0, 0, 2)


def reference(first, second):
    """log p - log(1 - p) in double precision, by logsigmoid: 1 - p = (1 - a) + a (1 - b)."""
    log_p = logsigmoid(first) + logsigmoid(second)
    return log_p - torch.logaddexp(logsigmoid(-first), logsigmoid(first) + logsigmoid(-second))


def forward(net, rows):
    num = len(rows)
    nothing = torch.zeros(num, 0, 4), torch.zeros(num, 0, 1, 4), torch.zeros(num, 0), torch.zeros(num, 0)
    return net(rows, *nothing)


def test_the_logit_of_a_product_is_exact_near_zero_and_one():
    values = torch.tensor([-80.0, -20.0, -3.0, 0.0, 0.7, 3.0, 20.0, 80.0])
    grid = torch.cartesian_prod(values, values)
    ours, plain = grid.clone().requires_grad_(), grid.double().requires_grad_()
    found, expected = product_logit(ours[:, 0], ours[:, 1]), reference(plain[:, 0], plain[:, 1])
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad.double(), plain.grad, rtol=1e-5, atol=1e-6)


def test_the_second_factor_is_told_from_the_product():
    first, second = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)) * 3
    torch.testing.assert_close(conditional_logit(first, product_logit(first, second)), second, rtol=1e-2, atol=1e-2)
    far = conditional_logit(torch.tensor([0.0, 0.0, -900.0]), torch.tensor([0.0, -900.0, -900.0]))
    assert torch.isfinite(far).all()


def test_the_loss_over_the_entire_space_is_the_papers():
    """Cross-entropy of click by p(click), of click and conversion by p(click) p(conversion | click), over all."""
    torch.manual_seed(0)
    net = ESMM(SPEC, tower=[5], wide=False)
    net.calibration.rate_L.copy_(torch.tensor([0.3, 0.1]))
    rows = torch.randn(6, 2, 4, requires_grad=True)
    click, conversion = torch.tensor([1.0, 1, 1, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0, 0, 0])
    logits, labels = forward(net, rows), torch.stack([click, conversion], 1)
    loss = binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    (ours,) = torch.autograd.grad(loss, rows)
    inputs, base = rows.flatten(1).double(), torch.logit(net.calibration.rate_L.double())
    net.double()
    p_click, p_after = (torch.sigmoid(base[n] + net.towers[n](inputs)[:, 0]) for n in range(2))
    p = p_click * p_after
    expected = -(click * p_click.log() + (1 - click) * (1 - p_click).log()).sum()
    expected -= (conversion * p.log() + (1 - conversion) * (1 - p).log()).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    (theirs,) = torch.autograd.grad(expected, rows)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def still(net):
    """The net with towers that give 0."""
    for tower in net.towers:
        torch.nn.init.zeros_(tower[-1].weight)
        torch.nn.init.zeros_(tower[-1].bias)
    return net


def test_a_new_net_predicts_the_base_rates_of_click_and_of_conversion_after_a_click():
    net, nothing = still(ESMM(SPEC)), torch.zeros(4000, 2, 4)
    click = (torch.arange(4000) % 5 == 0).float()
    labels = torch.stack([click, (torch.arange(4000) % 50 == 0).float()], 1)
    for _ in range(4):
        net.observe_labels(forward(net, nothing).detach(), labels, torch.ones(4000))
    rates = torch.sigmoid(forward(net, nothing)).mean(0)
    assert rates[0].item() == pytest.approx(0.2, rel=0.01)
    assert rates[1].item() == pytest.approx(0.02, rel=0.02)


def test_a_masked_conversion_moves_no_rate_of_it():
    net = ESMM(SPEC)
    before = net.calibration.rate_L[1].item()
    labels = torch.tensor([[1.0, torch.nan], [torch.nan, 1.0], [0.0, 0.0]])
    net.observe_labels(torch.zeros(3, 2), labels, torch.ones(3))
    assert net.calibration.rate_L[1].item() == before


def test_as_an_offset_it_is_zero_at_first_and_then_how_far_the_product_moves_from_that_of_the_rates():
    torch.manual_seed(0)
    net = ESMM(SPEC, tower=[5])
    net.use_wide_part()
    rates = torch.tensor([0.2, 0.3])
    net.calibration.rate_L.copy_(rates)
    rows = torch.randn(3, 2, 4)
    assert (forward(net, rows) == 0).all()
    for tower in net.towers:
        torch.nn.init.normal_(tower[-1].weight)
    offsets = forward(net, rows).double()
    scores = torch.cat([tower(rows.flatten(1)) for tower in net.towers], 1).double()
    moved = torch.sigmoid(torch.logit(rates.double()) + scores).prod(1)
    expected = torch.logit(moved) - torch.logit(rates.double().prod())
    torch.testing.assert_close(offsets[:, 0], scores[:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(offsets[:, 1], expected, rtol=1e-4, atol=1e-5)


def test_labels_are_found_by_name_and_others_have_towers_of_their_own():
    spec = spec_of_sizes(2, 0, 0, 0, 3)
    net = ESMM(spec, click="y2", conversion="y0")
    assert (net.click, net.conversion) == (2, 0)
    logits = forward(net, torch.randn(4, 2, 4))
    assert (logits[:, 0] < logits[:, 2]).all()  # a conversion is never likelier than its click
    with pytest.raises(ValueError, match="order"):
        ESMM(spec, click="order")
    with pytest.raises(ValueError, match="must be two labels"):
        ESMM(spec, click="y1")
    with pytest.raises(ValueError, match="needs two labels"):
        ESMM(spec_of_sizes(2, 0, 0, 0, 1))
