"""A net's program computes what the net computes by autograd: logits, and gradients of parameters and rows."""

# N samples, L labels
import numpy as np
import pytest
import torch
from torch import nn

from springtide.app.models.calibrated_model import Calibration
from springtide.app.models.compiled_net import MOST_FLOPS, CompiledNet
from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import DenseModel, ModelSpec
from springtide.app.models.layers import perceptron
from springtide.app.models.registry import build_model
from springtide.app.models.trace import TraceError, trace
from springtide.app.models.wide_part import add_wide_part
from springtide.kernels.cpu.net.program import CALIBRATE, COPY
from springtide_client.model.inputs import ModelInputs
from springtide_client.schema import Schema

TOLERANCE = 1e-4  # of a number, or of a hundredth of the largest of its kind: sums are taken in another order

TWO_IDS = Schema(labels=("click",), categorical=("user", "item"))
CLICKS = Schema(
    labels=("click", "buy"),
    categorical=("user", "item", "place"),
    multi_value=("tags", "words"),
    sequence=("last",),
    share={"last": "item"},
    dense=("price", "age"),
)
COMPILED = [
    "dlrm",
    "deepfm",
    "logistic",
    "wide_and_deep",
    "dcn",
    "xdeepfm",
    "pnn",
    "fwfm",
    "ffm",
    "shared_bottom",
    "mmoe",
    "ple",
]


def model_of(name: str, schema: Schema, *, wide: bool, options: dict[str, object] | None = None) -> DenseModel:
    config = ModelConfig(name=name, wide=wide, options=options or {})
    model = build_model(config, ModelSpec.of(schema, 24), seed=0)
    add_wide_part(model, config, schema)
    assert isinstance(model, DenseModel)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():  # none is zero, as those of a new net are
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.05)
    model.observe_inputs(inputs_of(model.spec, 50).dense)
    return model


def inputs_of(spec: ModelSpec, num_samples: int) -> ModelInputs:
    draw = torch.Generator().manual_seed(num_samples)
    dense_NF = torch.rand(num_samples, spec.num_dense, generator=draw) * 100 - 20
    dense_NF[torch.rand(dense_NF.shape, generator=draw) < 0.2] = torch.nan
    return ModelInputs(
        torch.randn(num_samples, spec.num_categorical, spec.dim, generator=draw) * 0.3,
        torch.randn(num_samples, spec.num_pooled, spec.dim, generator=draw) * 0.3,
        torch.randn(num_samples, spec.num_sequence, 1, spec.dim, generator=draw) * 0.3,  # one element: its own mean
        torch.ones(num_samples, spec.num_sequence, dtype=torch.int64),
        dense_NF,
    )


def of_program(inputs: ModelInputs) -> ModelInputs:
    """The same inputs with the means of sequences among the lists."""
    lists_NPD = torch.cat([inputs.pooled, inputs.sequence[:, :, 0]], dim=1)
    return ModelInputs(inputs.categorical, lists_NPD, None, None, inputs.dense)


def assert_close(found: torch.Tensor | np.ndarray, wanted: torch.Tensor) -> None:
    found, wanted = np.asarray(found), wanted.detach().numpy()
    assert found.shape == wanted.shape
    atol = TOLERANCE * 1e-2 * float(np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=atol)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("schema", [TWO_IDS, CLICKS], ids=["two ids", "clicks"])
def test_scores_and_gradients_are_those_of_autograd(name, wide, schema):
    model = model_of(name, schema, wide=wide)
    spec, wanted = model.spec, {}
    for num_samples in (1, 6, 67):  # one, a part of four, more than a chunk
        inputs = inputs_of(spec, num_samples)
        rows = [part.clone().requires_grad_() for part in inputs[:3]]
        model.zero_grad()
        logits_NL = model(*rows, *inputs[3:])
        errors_NL = torch.randn(logits_NL.shape, generator=torch.Generator().manual_seed(1))
        if logits_NL.requires_grad:
            logits_NL.backward(errors_NL)
        gradients = {name: one.grad for name, one in model.named_parameters()}
        row_gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in rows]
        wanted[num_samples] = logits_NL, errors_NL, gradients, torch.cat([g.flatten(1) for g in row_gradients], dim=1)
    program = CompiledNet.of(model)
    for num_samples, (logits_NL, errors_NL, gradients, row_gradients) in wanted.items():
        assert_close(program.forward(of_program(inputs_of(spec, num_samples))), logits_NL)
        model.zero_grad()
        rows_NR = np.full(row_gradients.shape, np.nan, np.float32)
        norm = program.backward(errors_NL.numpy(), rows_NR)
        assert_close(rows_NR, row_gradients)
        for parameter_name, parameter in model.named_parameters():
            gradient = gradients[parameter_name]
            assert_close(
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad,
                torch.zeros_like(parameter) if gradient is None else gradient,
            )
        every = [gradient.flatten() for gradient in gradients.values() if gradient is not None]
        assert_close(norm, torch.cat(every).norm() if every else torch.zeros(()))


def test_the_modules_tensors_are_those_of_the_program():
    model = model_of("dlrm", CLICKS, wide=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program = CompiledNet.of(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.load_state_dict({name: torch.full_like(value, 0.25) for name, value in before.items()})
    inputs = inputs_of(model.spec, 5)
    assert_close(program.forward(of_program(inputs)), model(*inputs))


def test_statistics_count_for_the_next_batch():
    model = model_of("dlrm", CLICKS, wide=False)
    program, inputs = CompiledNet.of(model), inputs_of(model.spec, 5)
    earlier = program.forward(of_program(inputs))
    model.observe_inputs(inputs.dense * 3)
    model.observe_labels(torch.zeros(5, 2), torch.ones(5, 2), torch.ones(5))
    assert_close(program.forward(of_program(inputs)), model(*inputs))
    assert not np.array_equal(program.forward(of_program(inputs)), earlier)


def test_samples_do_not_depend_on_each_other_and_repeat_bit_by_bit():
    program = CompiledNet.of(model_of("dcn", CLICKS, wide=True))
    inputs = inputs_of(ModelSpec.of(CLICKS, 24), 64)
    together = program.forward(of_program(inputs))
    assert np.array_equal(together, program.forward(of_program(inputs)))
    assert_close(
        program.forward(of_program(ModelInputs(*(part[8:12] for part in inputs)))), torch.from_numpy(together[8:12])
    )


def test_a_batch_is_compiled_up_to_a_number_of_operations():
    program = CompiledNet.of(model_of("dlrm", TWO_IDS, wide=True))
    most, num_flops = program.max_samples, program.program.num_flops
    assert most * num_flops <= MOST_FLOPS < (most + 1) * num_flops


@pytest.mark.parametrize("name", ["autoint", "finalmlp"])
def test_a_net_that_does_more_than_a_program_can_learns_by_autograd(name):
    with pytest.raises(TraceError, match="has no instruction"):
        CompiledNet.of(model_of(name, TWO_IDS, wide=True))


def test_a_net_that_maps_rows_of_several_widths_to_one_learns_by_autograd():
    model = build_model(ModelConfig(name="dlrm"), ModelSpec.of(TWO_IDS, 8, {0: 4}), seed=0)
    with pytest.raises(TraceError, match="rows of several widths"):
        CompiledNet.of(model)


class Own(DenseModel):
    """A user's net."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.net = perceptron([spec.num_categorical * spec.dim, 4, spec.num_labels], last_is_linear=True)

    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        return self.net(categorical_NCD.flatten(1))


def test_a_users_own_net_learns_by_autograd():
    with pytest.raises(TraceError, match="none of the built-in ones"):
        CompiledNet.of(Own(ModelSpec.of(TWO_IDS, 24)))


class Reordered(Own):
    """Calibrates scores that are not in adjacent columns."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.calibration = Calibration(spec.num_labels)

    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        return self.calibration(self.net(categorical_NCD.flatten(1))[:, [1, 0]])


def test_scores_that_are_apart_are_copied_once_before_they_are_calibrated():
    schema = Schema(labels=("click", "buy"), categorical=("user", "item"))
    operations = trace(Reordered(ModelSpec.of(schema, 24))).program.instructions_IO[:, 0].tolist()
    assert operations[-2:] == [COPY, CALIBRATE]
    assert operations.count(COPY) == 1


class Mixed(Own):
    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        return self.net(categorical_NCD.flip(0).flatten(1)) + categorical_NCD.sum(0).sum()


class Turned(Own):
    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        return self.net(categorical_NCD.roll(1, 0).flatten(1))


class Stacked(Own):
    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        both = [categorical_NCD[:1].expand(categorical_NCD.shape).flatten(1), categorical_NCD.flatten(1)]
        return self.net(both[0]) + self.net(both[1])


class Random(Own):
    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        return nn.functional.dropout(self.net(categorical_NCD.flatten(1)))


class Assigning(Own):
    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        rows_NI = categorical_NCD.flatten(1).clone()
        rows_NI[:, :1] = 0.0
        return self.net(rows_NI)


class Divided(Own):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.register_buffer("scale", torch.ones(spec.num_labels))

    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        return self.net(categorical_NCD.flatten(1)) / self.scale


class Typed(Own):
    def forward(self, categorical_NCD, pooled_NPD, sequence_NSTD, length_NS, dense_NF):
        return self.net(categorical_NCD.flatten(1)) + categorical_NCD.sum(2).sum(1, keepdim=True, dtype=torch.float32)


@pytest.mark.parametrize("net", [Mixed, Turned, Stacked, Random, Assigning, Divided, Typed])
def test_a_trace_refuses_what_mixes_samples_draws_numbers_or_has_no_instruction(net):
    with pytest.raises(TraceError):
        trace(net(ModelSpec.of(TWO_IDS, 24)))
