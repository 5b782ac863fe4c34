"""Each feature of the dense net's update against a plain torch loop, bit by bit; on a device as on the host."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from springtide.app.models.interface import DenseModel, ModelSpec, ParameterGroup
from springtide.app.training.config import TrainConfig
from springtide.app.training.optimization.net_update import PART_OF_SAMPLES, NetUpdate
from springtide.app.training.step.learning_step import LearningStep, LossObjective, StepColumns, StepOutcome
from springtide_client.model.inputs import ModelInputs
from tests.app.training.random_clicks import SCHEMA

SIZES = [16, 16, 5, 16, 3, 16, 16, 1, 16]


class Net(DenseModel):
    """A matrix, a norm and a bias."""

    def __init__(self) -> None:
        super().__init__(ModelSpec.of(SCHEMA, 4))
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, categorical, pooled, sequence, length, dense) -> Tensor:
        return self.layers(categorical.flatten(1))


class Batches:
    """Of several sizes, the fourth with a gradient that is not finite if `broken`."""

    def __init__(self, *, broken: bool = False) -> None:
        random = torch.Generator().manual_seed(0)
        self.inputs, self.labels, self.weights = [], [], []
        for number, size in enumerate(SIZES):
            empty = [torch.zeros(size, 0, 4), torch.zeros(size, 0, 1, 4), torch.zeros(size, 0).long()]
            rows = torch.randn(size, 2, 4, generator=random)
            self.inputs.append(ModelInputs(rows, *empty, torch.zeros(size, 0)))
            self.labels.append((torch.rand(size, 1, generator=random) < 0.3).float())
            self.weights.append(torch.rand(size, generator=random) + 0.5)
            if broken and number == 3:
                self.weights[-1].fill_(3e38)


def learn(net: Net, update: NetUpdate, batches: Batches, numbers: range, *, bfloat16=False) -> list[StepOutcome]:
    step, objective, outcomes = LearningStep(net, update), LossObjective(net), []
    for number in numbers:
        update.begin_batch(SIZES[number], sum(SIZES[: number + 1]))
        columns = StepColumns(batches.inputs[number], batches.labels[number], batches.weights[number])
        outcomes.append(step(objective, columns, bfloat16=bfloat16))
        update.gathered.end_batch()
    return outcomes


def learned(settings: dict[str, Any], batches: Batches, *, on_device=False, **more) -> tuple[Net, NetUpdate, list]:
    net = Net()
    update = NetUpdate(net, TrainConfig(**settings), on_device=on_device)
    return net, update, learn(net, update, batches, range(len(SIZES)), **more)


def loss_of(net: nn.Module, batches: Batches, number: int) -> Tensor:
    logits = net(*batches.inputs[number])
    weights = batches.weights[number][:, None]
    return nn.functional.binary_cross_entropy_with_logits(logits, batches.labels[number], weights, reduction="sum")


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def peer(net: nn.Module, **settings) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), **{"lr": 0.01, "eps": 1e-8, "fused": True} | settings)


ADAM = {"optimizer": {"name": "adam", "lr": 0.01}}


def test_a_schedule_equals_a_loop_that_sets_the_learning_rate() -> None:
    schedule = {"name": "cosine", "warmup_samples": 30, "decay_samples": 50}
    settings, batches, plain = ADAM | {"lr_schedule": schedule}, Batches(), Net()
    net, update, _ = learned(settings, batches)
    optimizer = peer(plain)
    for number in range(len(SIZES)):
        trained = sum(SIZES[: number + 1])
        optimizer.param_groups[0]["lr"] = update.lr = 0.01 * TrainConfig(**settings).schedule.factor(trained)
        optimizer.zero_grad()
        loss_of(plain, batches, number).backward()
        optimizer.step()
    assert_equal(net, plain)


@pytest.mark.parametrize("clip", [{"clip_norm": 0.6}, {"clip_value": 0.3}], ids=["norm", "value"])
def test_clipping_equals_torchs_at_the_mean_gradient(clip) -> None:
    settings, batches, plain = {"optimizer": {"name": "sgd", "lr": 0.01}} | clip, Batches(), Net()
    net, _, outcomes = learned(settings, batches)
    clipped = []
    for number in range(len(SIZES)):
        plain.zero_grad()
        loss_of(plain, batches, number).backward()
        weight = batches.weights[number].sum()
        parameters = list(plain.parameters())
        if "clip_norm" in clip:
            limit = weight * 0.6
            norm = torch.nn.utils.clip_grad_norm_(parameters, float(limit))
            assert torch.equal(norm, outcomes[number].gradient_norm)
            clipped.append(bool(norm > limit))
        else:
            limit = weight * 0.3
            clipped.append(bool(max(p.grad.abs().max() for p in parameters) > limit))
            torch.nn.utils.clip_grad_value_(parameters, float(limit))
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=-0.01)
    assert_equal(net, plain)
    assert [bool(outcome.clipped) for outcome in outcomes] == clipped
    assert 0 < sum(clipped) < len(clipped)


@pytest.mark.parametrize("broken", [False, True])
def test_accumulated_batches_are_one_batch_of_all_their_samples(broken) -> None:
    """Of a batch that is not finite nothing is added; what is left at the end is not applied."""
    settings, batches, plain = ADAM | {"accumulate_batches": 4, "clip_norm": 0.1}, Batches(broken=broken), Net()
    net, update, outcomes = learned(settings, batches)
    optimizer = peer(plain)
    for start in (0, 4):
        optimizer.zero_grad()
        numbers = [number for number in range(start, start + 4) if not (broken and number == 3)]
        for number in numbers:
            loss_of(plain, batches, number).backward()
        weight = sum((batches.weights[number].sum() for number in numbers), torch.zeros(()))
        torch.nn.utils.clip_grad_norm_(plain.parameters(), float(weight * 0.1))
        optimizer.step()
    assert_equal(net, plain)
    assert [number for number, one in enumerate(outcomes) if one.skipped] == ([3] if broken else [])
    assert update.gathered.num_gathered == 1
    (total,) = [one for name, one in update.tensors().items() if name.endswith("gradient.layers.3.bias")]
    plain.zero_grad()
    loss_of(plain, batches, 8).backward()
    assert torch.equal(total, plain.layers[3].bias.grad)


def test_a_batch_alone_that_is_not_finite_is_no_step_when_all_of_an_accumulation_are() -> None:
    batches = Batches()
    for weights in batches.weights[:2]:
        weights.fill_(3e38)
    net, update = Net(), None
    update = NetUpdate(net, TrainConfig(**ADAM, accumulate_batches=2))
    learn(net, update, batches, range(2))
    assert_equal(net, Net())
    assert not update.optimizer.state


def test_averages_equal_a_loop_over_the_parameters_history() -> None:
    settings, batches, plain = ADAM | {"ema_half_life_samples": 6}, Batches(), Net()
    net, update, _ = learned(settings, batches)
    optimizer, averages = peer(plain), [parameter.detach().clone() for parameter in plain.parameters()]
    for number, size in enumerate(SIZES):
        optimizer.zero_grad()
        loss_of(plain, batches, number).backward()
        optimizer.step()
        half_life = min(6, PART_OF_SAMPLES * sum(SIZES[: number + 1]))
        weight = 1 - 0.5 ** (size / half_life)
        with torch.no_grad():
            for average, parameter in zip(averages, plain.parameters(), strict=True):
                average += weight * (parameter - average)
    assert_equal(net, plain)
    named = update.averages.named()
    assert named.keys() == dict(net.named_parameters()).keys()
    for mine, average in zip(named.values(), averages, strict=True):
        torch.testing.assert_close(mine, average, rtol=1e-5, atol=1e-6)
    assert not torch.equal(named["layers.0.weight"], net.layers[0].weight)


def test_weight_decay_is_adamws_and_leaves_biases_and_norms_alone() -> None:
    settings = {"optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.3}}
    batches, plain = Batches(), Net()
    net, _, _ = learned(settings, batches)
    groups = [
        {"params": [one for one in plain.parameters() if one.dim() > 1]},
        {"params": [one for one in plain.parameters() if one.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.3, fused=True)
    for number in range(len(SIZES)):
        optimizer.zero_grad()
        loss_of(plain, batches, number).backward()
        optimizer.step()
    assert_equal(net, plain)


class GroupedNet(Net):
    def parameter_groups(self) -> list[ParameterGroup]:
        first, _, _, last = self.layers
        slow = ParameterGroup([*first.parameters()], lr_factor=0.5)
        return [slow, ParameterGroup([*last.parameters()], weight_decay_factor=2.0)]


@pytest.mark.parametrize("on_device", [False, True])
def test_a_models_groups_have_factors_of_their_own(on_device) -> None:
    settings = {"optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.3}, "lr_schedule": {"warmup_samples": 99}}
    batches, plain, net = Batches(), GroupedNet(), GroupedNet()
    update = NetUpdate(net, TrainConfig(**settings), on_device=on_device)
    learn(net, update, batches, range(4))
    first, norm, _, last = plain.layers
    groups = [
        {"params": first.parameters(), "weight_decay": 0.3},
        {"params": last.parameters(), "weight_decay": 0.6},
        {"params": norm.parameters(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, fused=True)
    for number in range(4):
        for group, factor in zip(optimizer.param_groups, (0.5, 1.0, 1.0), strict=True):
            group["lr"] = 0.01 * min(1.0, sum(SIZES[: number + 1]) / 99) * factor
        optimizer.zero_grad()
        loss_of(plain, batches, number).backward()
        optimizer.step()
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_groups_that_name_a_parameter_twice_or_anothers_are_refused() -> None:
    net = GroupedNet()
    for groups, error in (
        ([ParameterGroup([*net.parameters(), net.layers[3].bias])], "each parameter once, not layers.3.bias twice"),
        ([ParameterGroup([*net.parameters(), nn.Parameter(torch.zeros(1))])], "a parameter that is not the model's"),
    ):
        net.parameter_groups = lambda groups=groups: groups
        with pytest.raises(ValueError, match=error):
            NetUpdate(net, TrainConfig())


def test_bfloat16_equals_a_plain_autocast_loop() -> None:
    batches, plain = Batches(), Net()
    net, _, _ = learned(ADAM | {"clip_norm": 0.1}, batches, bfloat16=True)
    optimizer = peer(plain)
    for number in range(len(SIZES)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = plain(*batches.inputs[number])
        weights = batches.weights[number][:, None]
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits.float(), batches.labels[number], weights, reduction="sum"
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), float(weights.sum() * 0.1))
        optimizer.step()
    assert_equal(net, plain)
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())


EVERYTHING = {
    "lr_schedule": {"name": "linear", "warmup_samples": 40, "decay_samples": 60},
    "clip_norm": 0.08,
    "accumulate_batches": 2,
    "ema_half_life_samples": 20,
}
OPTIMIZERS = [
    {"name": "adam", "lr": 0.01},
    {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.1},
    {"name": "adagrad", "lr": 0.05},
    {"name": "lion", "lr": 0.003, "beta2": 0.99, "weight_decay": 0.1},
]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: one["name"])
@pytest.mark.parametrize("more", [EVERYTHING, {}], ids=["everything", "plain"])
def test_a_device_learns_what_the_host_learns(more, optimizer, broken) -> None:
    settings, batches = {"optimizer": optimizer} | more, Batches(broken=broken)
    host, on_host, outcomes = learned(settings, batches)
    device, on_device, others = learned(settings, batches, on_device=True)
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(others, outcomes, strict=True):
        assert (bool(mine.skipped), bool(mine.clipped)) == (bool(theirs.skipped), bool(theirs.clipped))
    assert sum(bool(one.skipped) for one in outcomes) == broken
    tensors, expected = on_device.tensors(), on_host.tensors()
    assert expected.keys() <= tensors.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: one["name"])
def test_a_loop_goes_on_bit_by_bit_from_what_a_version_carries(optimizer) -> None:
    """Stopped in a warm-up and in an accumulation, with averages that are under way."""
    settings, batches = {"optimizer": optimizer} | EVERYTHING, Batches()
    whole, update, _ = learned(settings, batches)
    net, arrays = Net(), {}
    for numbers in (range(3), range(3, 6), range(6, 9)):
        part = NetUpdate(net, TrainConfig(**settings))
        part.restore(arrays)
        learn(net, part, batches, numbers)
        arrays = {name: tensor.numpy().copy() for name, tensor in part.tensors().items()}
    assert_equal(net, whole)
    expected = update.tensors()
    assert expected.keys() == arrays.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy(), err_msg=name)


def test_gradients_gathered_before_a_change_of_the_setting_are_applied_with_the_next() -> None:
    batches, plain, net = Batches(), Net(), Net()
    before = NetUpdate(net, TrainConfig(**ADAM, accumulate_batches=4))
    learn(net, before, batches, range(2))
    arrays = {name: tensor.numpy().copy() for name, tensor in before.tensors().items()}
    after = NetUpdate(net, TrainConfig(**ADAM))
    after.restore(arrays)
    learn(net, after, batches, range(2, 4))
    optimizer = peer(plain)
    for numbers in ((0, 1, 2), (3,)):
        optimizer.zero_grad()
        for number in numbers:
            loss_of(plain, batches, number).backward()
        optimizer.step()
    assert_equal(net, plain)
    assert not any(name.startswith("accumulated.") for name in after.tensors())
