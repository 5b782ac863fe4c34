import math

import pytest
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.registry import build_model
from tests.app.models.interactions.plain import Sample, check_against
from tests.support.model_specs import spec_of_sizes

HIDDEN = {"hidden": [7]}


def cross(sample: Sample, num_layers: int) -> torch.Tensor:
    first = x = sample.inputs
    for layer in range(num_layers):
        name = f"cross.{layer}"
        if f"{name}.linear.weight" in sample.parameters:
            inner = sample.linear(f"{name}.linear", x)
        else:
            down, core, up, bias, gate = (
                sample.parameters[f"{name}.{part}"]
                for part in ("down_KRI", "core_KRR", "up_KIR", "bias_I", "gate.weight")
            )
            powers = [torch.exp(row @ x) for row in gate]
            inner = bias
            for k in range(len(down)):
                expert = up[k] @ torch.tanh(core[k] @ torch.tanh(down[k] @ x))
                inner = inner + powers[k] / sum(powers) * expert
        x = torch.stack([first[i] * inner[i] + x[i] for i in range(len(x))])
    return x


def parallel(sample: Sample, is_offset: bool):
    x = cross(sample, 2)
    deep = sample.linear("last", torch.cat([x, sample.perceptron("deep", sample.inputs, last_is_linear=False)]))
    return deep if is_offset else [a + b for a, b in zip(deep, sample.first_order(), strict=True)]


def stacked(sample: Sample, is_offset: bool):
    deep = sample.linear("last", sample.perceptron("deep", cross(sample, 2), last_is_linear=False))
    return deep if is_offset else [a + b for a, b in zip(deep, sample.first_order(), strict=True)]


def alone(sample: Sample, is_offset: bool):
    deep = sample.linear("last", cross(sample, 1))
    return deep if is_offset else [a + b for a, b in zip(deep, sample.first_order(), strict=True)]


@pytest.mark.parametrize("rank", [{}, {"rank": 2, "experts": 3}])
def test_it_equals_a_plain_reference(rank):
    check_against(parallel, "dcn", HIDDEN | rank)
    check_against(stacked, "dcn", HIDDEN | rank | {"structure": "stacked"}, dims={0: 4})
    check_against(alone, "dcn", {"hidden": [], "layers": 1} | rank)


def test_low_rank_layers_have_fewer_parameters():
    spec = spec_of_sizes(20, dim=16)

    def size(**options) -> int:
        model = build_model(ModelConfig(name="dcn", options=options | {"hidden": []}), spec, seed=0)
        return sum(math.prod(p.shape) for p in model.cross.parameters())

    assert size() == 2 * (320 * 320 + 320)
    assert size(rank=8, experts=2) == 2 * (2 * (2 * 320 * 8 + 8 * 8) + 320 + 2 * 320)
