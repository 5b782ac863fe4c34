import builtins
import io

import numpy as np
import pytest
import torch
from numba.core.compiler_lock import global_compiler_lock
from torch import nn

from springtide.app.models.calibrated_model import Calibration
from springtide.app.models.config import BUILT_IN_MODELS, ModelConfig
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import DenseFeatureNormalizer
from springtide.app.models.registry import build_model
from springtide_client.model.exported_model import ExportedModel as ServedModel
from springtide_client.model.inputs import ModelInputs
from tests.support.model_specs import spec_for, spec_of_sizes
from tests.support.model_variants import SIMPLE

RANKERS = [name for name in BUILT_IN_MODELS if name != "two_tower"]  # which has tests of its own
SIZES = [(2, 1, 1, 2, 1), (3, 0, 0, 0, 1), (0, 0, 0, 3, 2), (0, 1, 0, 0, 1), (0, 0, 1, 1, 3)]


def inputs_of(spec: ModelSpec, samples: int, longest: int, seed: int = 0) -> ModelInputs:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (samples, spec.num_sequence), generator=draw)
    sequence = torch.randn(samples, spec.num_sequence, longest, spec.dim, generator=draw)
    sequence *= (torch.arange(longest) < lengths[..., None])[..., None]
    dense = torch.randn(samples, spec.num_dense, generator=draw) * 100
    dense[torch.rand(dense.shape, generator=draw) < 0.3] = float("nan")
    return ModelInputs(
        torch.randn(samples, spec.num_categorical, spec.dim, generator=draw),
        torch.randn(samples, spec.num_pooled, spec.dim, generator=draw),
        sequence,
        lengths,
        dense,
    )


@pytest.mark.parametrize("name", RANKERS)
def test_a_model_takes_any_kind_of_feature_and_any_number_of_samples(name):
    for sizes in SIZES:
        spec = spec_for(name, *sizes)
        model = build_model(ModelConfig(name=name), spec, seed=1)
        for samples, longest in [(1, 1), (7, 5), (0, 1)]:
            logits_NL = model(*inputs_of(spec, samples, longest))
            assert logits_NL.shape == (samples, spec.num_labels)
            assert torch.isfinite(logits_NL).all()


@pytest.mark.parametrize(
    ("name", "sizes"),
    # the others are exported in tests/app/training/test_every_model.py
    [("dlrm", sizes) for sizes in SIZES[:-1]] + [(name, SIZES[-1]) for name in sorted(SIMPLE)],
)
def test_an_exported_model_gives_the_same_logits_for_any_number_of_samples(name, sizes):
    spec = spec_for(name, *sizes)
    model = build_model(ModelConfig(name=name), spec, seed=1).eval()
    program = torch.export.load(io.BytesIO(export_model(model, spec)))
    assert program.example_inputs is None
    for samples, longest in [(1, 1), (7, 5), (0, 1)]:
        inputs = inputs_of(spec, samples, longest)
        assert torch.equal(program.module()(*inputs), model(*inputs))


def test_a_served_program_with_later_parameters_equals_the_later_model():
    spec = spec_of_sizes(2, 1, 1, 2, 2)
    model = build_model(ModelConfig(name="dlrm"), spec, seed=1)
    served = ServedModel(export_model(model, spec))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    inputs = inputs_of(spec, 5, 3)
    model.observe_inputs(inputs.dense)
    model.observe_labels(model(*inputs).detach(), torch.ones(5, 2), torch.ones(5))
    dense = {key: value.numpy() for key, value in model.state_dict().items()}
    predictions = served.predict(served.parameters(dense), ModelInputs(*(part.numpy() for part in inputs)))
    np.testing.assert_array_equal(predictions, torch.sigmoid(model(*inputs)).detach().numpy())


@pytest.mark.parametrize("name", RANKERS)
def test_initial_weights_are_a_function_of_the_seed(name):
    spec = spec_for(name, 2, 0, 0, 2, 1)
    first = build_model(ModelConfig(name=name), spec, seed=3)
    torch.rand(5)
    before = torch.random.get_rng_state()
    second = build_model(ModelConfig(name=name), spec, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])


@pytest.mark.parametrize("name", RANKERS)
def test_gradients_reach_every_kind_of_row(name):
    spec = spec_for(name, 2, 1, 1, 1, 1)
    model = build_model(ModelConfig(name=name), spec, seed=0)
    inputs = inputs_of(spec, 6, 3)
    rows = [inputs.categorical, inputs.pooled, inputs.sequence]
    for part in rows:
        part.requires_grad_()
    model(*inputs).sum().backward()
    assert all(part.grad is not None and part.grad.abs().sum() > 0 for part in rows)


def test_a_new_model_predicts_about_the_base_rate():
    spec = spec_of_sizes(2, 0, 0, 0, 1)
    model = build_model(ModelConfig(name="logistic"), spec, seed=0)
    labels = torch.zeros(1000, 1)
    labels[:10] = 1
    nothing = inputs_of(spec, 1000, 1)._replace(categorical=torch.zeros(1000, 2, 4))
    model.observe_labels(model(*nothing).detach(), labels, torch.ones(1000))
    assert torch.sigmoid(model(*nothing)).mean().item() == pytest.approx(11 / 1004, rel=1e-3)


def test_dense_features_are_standardized_and_missing_ones_are_marked():
    transform = DenseFeatureNormalizer(2)
    draw = np.random.default_rng(0)
    raw = np.stack([np.expm1(draw.normal(3, 2, 1000).clip(0)), np.full(1000, 7.0)], axis=1).astype(np.float32)
    raw[::4, 0] = np.nan
    for part in np.array_split(raw, 13):
        transform.observe(torch.from_numpy(part))
    known = np.log1p(raw[~np.isnan(raw[:, 0]), 0])
    assert transform.mean_F[0].item() == pytest.approx(known.mean(), rel=1e-4)
    assert transform.variance_F[0].item() == pytest.approx(known.var(), rel=1e-3)
    standard = transform(torch.from_numpy(raw))
    assert standard.shape == (1000, 4)
    assert torch.isfinite(standard).all()
    assert (standard[::4, 0] == 0).all()
    assert (standard[::4, 2] == 1).all()
    assert standard[:, 1].abs().max() < 0.01  # a constant says nothing


def test_a_batch_without_any_dense_value_updates_no_statistic():
    transform = DenseFeatureNormalizer(1)
    transform.observe(torch.tensor([[1.0], [5.0]]))
    before = {key: value.clone() for key, value in transform.state_dict().items()}
    transform.observe(torch.full((3, 1), float("nan")))
    assert all(torch.equal(value, before[key]) for key, value in transform.state_dict().items())


def test_trust_falls_when_scores_promise_more_than_labels_keep():
    calibration = Calibration(1)
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        scores = torch.randn(50, 1, generator=draw) * 3  # pure noise
        labels = (torch.rand(50, 1, generator=draw) < 0.3).float()
        calibration.observe(calibration(scores).detach(), labels, torch.ones(50))
    assert calibration.trust_L.item() < 0.2
    assert calibration.rate_L.item() == pytest.approx(0.3, abs=0.02)


def test_masked_labels_and_samples_without_weight_update_no_statistic():
    calibration = Calibration(2)
    before = {key: value.clone() for key, value in calibration.state_dict().items()}
    logits = calibration(torch.ones(3, 2)).detach()
    calibration.observe(logits, torch.full((3, 2), float("nan")), torch.ones(3))
    calibration.observe(logits, torch.ones(3, 2), torch.zeros(3))
    assert all(torch.equal(value, before[key]) for key, value in calibration.state_dict().items())


def test_one_class_alone_keeps_logits_finite():
    calibration = Calibration(1)
    for _ in range(100):
        calibration.observe(calibration(torch.zeros(4096, 1)).detach(), torch.ones(4096, 1), torch.full((4096,), 1e3))
    assert torch.isfinite(calibration(torch.zeros(1, 1))).all()


class Own(nn.Module):
    def __init__(self, spec: ModelSpec, *, width: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(spec.num_fields * spec.dim, width)

    def forward(self, categorical, pooled, sequence, length, dense):
        return self.linear(categorical.flatten(1))


def test_a_model_class_of_the_users_own_is_found_by_name(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "my_models", __import__("types").SimpleNamespace(Own=Own))
    spec = spec_of_sizes(2, 0, 0, 0, 1)
    model = build_model(ModelConfig(name="my_models:Own"), spec, seed=0)
    assert isinstance(model, Own)
    assert ServedModel(export_model(model, spec)).parameter_names == ("linear.weight", "linear.bias")
    with pytest.raises(ValueError, match=r"logits of shape \[N, L\]"):
        build_model(ModelConfig(name="my_models:Own", options={"width": 3}), spec, seed=0)
    with pytest.raises(ValueError, match=r"no torch\.nn\.Module called 'Other'"):
        build_model(ModelConfig(name="my_models:Other"), spec, seed=0)


def test_no_thread_compiles_a_kernel_while_torch_export_replaces_builtins():
    built_in_max, seen = max, []

    class Watching(Own):
        def forward(self, categorical, pooled, sequence, length, dense):
            seen.append((builtins.max is built_in_max, global_compiler_lock.is_locked()))
            return super().forward(categorical, pooled, sequence, length, dense)

    export_model(Watching(spec_of_sizes(2)), spec_of_sizes(2))
    assert (False, True) in seen  # torch's `max`, and Numba's lock held
    assert (False, False) not in seen
    assert not global_compiler_lock.is_locked()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("dlmr", {}, 'did you mean "dlrm"'),
        ("zzz", {}, "one of dlrm, deepfm, "),
        ("not_a_package_here:Model", {}, "cannot be imported"),
        ("dlrm", {"bottoms": [3]}, "bottoms"),
        ("deepfm", {"hidden": 64}, "list of layer sizes"),
    ],
)
def test_a_wrong_model_is_rejected_with_the_reason(name, options, says):
    with pytest.raises(ValueError, match=says):
        build_model(ModelConfig(name=name, options=options), spec_of_sizes(2, 0, 0, 1, 1), seed=0)


class TooCurious(Own):
    def forward(self, categorical, pooled, sequence, length, dense):
        return self.linear(categorical.flatten(1)) * len(categorical)


class Averaging(Own):
    """Writes a buffer while it is trained."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.norm = nn.BatchNorm1d(spec.num_fields * spec.dim)

    def forward(self, categorical, pooled, sequence, length, dense):
        return self.linear(self.norm(categorical.flatten(1)))


class Choosy(Own):
    """Has tensors of as many rows as there are large values."""

    def forward(self, categorical, pooled, sequence, length, dense):
        return self.linear(categorical.flatten(1)) + categorical[categorical > 1].sum()


def test_a_model_that_writes_a_buffer_in_forward_is_refused(monkeypatch):
    module = __import__("types").SimpleNamespace(Averaging=Averaging)
    monkeypatch.setitem(__import__("sys").modules, "my_models", module)
    with pytest.raises(ValueError, match=r"writes the buffer 'norm.running_mean' in forward: write statistics in obse"):
        build_model(ModelConfig(name="my_models:Averaging"), spec_of_sizes(2), seed=0)


def test_shapes_that_depend_on_values_are_refused():
    spec = spec_of_sizes(2)
    with pytest.raises(ValueError, match=r"Choosy cannot be exported .* depends on values, as that of x\[mask\] does"):
        export_model(Choosy(spec), spec)


def test_a_model_that_cannot_be_exported_is_explained_in_one_line():
    spec = spec_of_sizes(2, 0, 0, 0, 1)
    with pytest.raises(ValueError, match=r"TooCurious cannot be exported .*x\.shape\[0\] is fine") as caught:
        export_model(TooCurious(spec), spec)
    assert "\n" not in str(caught.value)
