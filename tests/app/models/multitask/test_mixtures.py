"""Shared bottom, MMoE and PLE against the formulas of their papers, one sample and one unit at a time."""

import pytest
import torch

from springtide.app.models.multitask.mixtures import PLE, MMoE, SharedBottom
from tests.support.model_specs import spec_of_sizes

SPEC = spec_of_sizes(2, 0, 0, 1, 3)
NETS = {
    "shared bottom": lambda: SharedBottom(SPEC, bottom=[5, 4], tower=[3]),
    "mmoe": lambda: MMoE(SPEC, num_experts=3, expert=[5, 4], tower=[3]),
    "ple": lambda: PLE(SPEC, num_levels=2, num_specific=2, num_shared=1, expert=[4], tower=[3]),
    "cgc without shared experts": lambda: PLE(SPEC, num_levels=1, num_specific=2, num_shared=0, expert=[4]),
}


def perceptron(x, state, prefix, *, ends_in_relu):
    places = sorted({int(key[len(prefix) :].split(".")[0]) for key in state if key.startswith(prefix)})
    for place in places:
        rows = zip(state[f"{prefix}{place}.weight"], state[f"{prefix}{place}.bias"], strict=True)
        x = [sum(w * value for w, value in zip(row, x, strict=True)) + bias for row, bias in rows]
        if ends_in_relu or place != places[-1]:
            x = [value if value > 0 else value * 0 for value in x]
    return x


def mixture(x, experts, state, prefix):
    scores = [sum(w * value for w, value in zip(row, x, strict=True)) for row in state[f"{prefix}linear.weight"]]
    shares = [torch.exp(score) / sum(torch.exp(other) for other in scores) for score in scores]
    return [
        sum(share * expert[h] for share, expert in zip(shares, experts, strict=True)) for h in range(len(experts[0]))
    ]


def tower_inputs(name, x, state):
    if name == "shared bottom":
        return [perceptron(x, state, "bottom.", ends_in_relu=True)] * 3
    if name == "mmoe":
        experts = [perceptron(x, state, f"experts.{k}.", ends_in_relu=True) for k in range(3)]
        return [mixture(x, experts, state, f"gates.{label}.") for label in range(3)]
    levels, num_shared = (2, 1) if name == "ple" else (1, 0)
    own, common = [x] * 3, x
    for level in range(levels):
        at = f"levels.{level}."
        shared = [perceptron(common, state, f"{at}shared.{k}.", ends_in_relu=True) for k in range(num_shared)]
        specific = [
            [perceptron(own[label], state, f"{at}specific.{label}.{k}.", ends_in_relu=True) for k in range(2)]
            for label in range(3)
        ]
        mixed = [mixture(own[label], [*specific[label], *shared], state, f"{at}gates.{label}.") for label in range(3)]
        if level < levels - 1:
            common = mixture(common, [*specific[0], *specific[1], *specific[2], *shared], state, f"{at}shared_gate.")
        own = mixed
    return own


def plain_scores(name, net, fields, dense):
    """The wide terms, and a tower for each label over what the paper gives it."""
    state, scores = dict(net.named_parameters()), []
    for n in range(len(fields)):
        inputs = tower_inputs(name, [*fields[n].flatten(), *dense[n]], state)
        pairs = net.pair_scale * sum(a * b for a, b in zip(fields[n, 0], fields[n, 1], strict=True))
        for label in range(3):
            (score,) = perceptron(inputs[label], state, f"towers.{label}.", ends_in_relu=False)
            scores.append(score + pairs + net.first_order_scale * fields[n, :, label].sum())
    return torch.stack(scores).view(len(fields), 3)


@pytest.mark.parametrize("name", NETS)
def test_a_net_and_its_gradients_equal_the_papers_formulas(name):
    torch.manual_seed(0)
    net = NETS[name]().double()
    fields = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    dense = torch.randn(3, net.normalizer.num_outputs, dtype=torch.float64)
    downstream, found = torch.randn(3, 3), []
    for scores in (net.scores(fields, dense).float(), plain_scores(name, net, fields, dense).float()):
        net.zero_grad(set_to_none=True)
        fields.grad = None
        scores.backward(downstream)
        found.append((scores, fields.grad, {key: p.grad for key, p in net.named_parameters() if p.grad is not None}))
    (ours, our_rows, our_parameters), (theirs, their_rows, their_parameters) = found
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_rows, their_rows, rtol=1e-5, atol=1e-6)
    assert our_parameters.keys() == their_parameters.keys()
    for key, gradient in our_parameters.items():
        torch.testing.assert_close(gradient, their_parameters[key], rtol=1e-5, atol=1e-6)


def test_a_labels_gate_in_ple_never_sees_the_experts_of_another_label():
    torch.manual_seed(0)
    net = PLE(SPEC, num_specific=1, num_shared=1, expert=[4])
    net.scores(torch.randn(2, 2, 4), torch.zeros(2, net.normalizer.num_outputs))[:, 1].sum().backward()
    touched = [key for key, p in net.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert any(key.startswith("levels.0.specific.1.") for key in touched)
    assert not any(key.startswith(("levels.0.specific.0.", "levels.0.specific.2.")) for key in touched)


@pytest.mark.parametrize("name", NETS)
def test_as_an_offset_every_label_starts_at_zero_and_learns(name):
    net = NETS[name]()
    net.use_wide_part()
    nothing = torch.zeros(2, 0, 4), torch.zeros(2, 0, 1, 4), torch.zeros(2, 0)
    logits = net(torch.ones(2, 2, 4), *nothing, torch.ones(2, 1))
    assert (logits == 0).all()
    logits.backward(torch.ones(2, 3))
    for tower in net.towers:
        assert (tower[-1].bias.grad == 2).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MMoE(SPEC, num_experts=0), "num_experts must be a number from 1 to 1024, not 0"),
        (lambda: MMoE(SPEC, expert=[]), "expert must have at least one layer"),
        (lambda: PLE(SPEC, num_levels=2.5), "num_levels must be a number from 1"),
        (lambda: SharedBottom(SPEC, tower=[0]), "tower must be a list of layer sizes"),
    ],
)
def test_wrong_options_are_errors(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_without_a_bottom_the_towers_see_the_rows_themselves():
    net = SharedBottom(SPEC, bottom=[], wide=False)
    fields = torch.randn(2, 2, 4)
    scores = net.scores(fields, torch.zeros(2, net.normalizer.num_outputs))
    expected = fields.flatten(1) @ net.towers[0][0].weight[0, :8] + net.towers[0][0].bias
    torch.testing.assert_close(scores[:, 0], expected)
