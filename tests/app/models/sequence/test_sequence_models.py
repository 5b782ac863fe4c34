"""The sequence models as a configuration builds them: features by name, exports, the wide part's offset."""

import io
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from springtide.app.models.config import ModelConfig
from springtide.app.models.export.onnx_export import export_onnx, is_possible
from springtide.app.models.export.torch_export import export_model
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.models.sequence.sequence_model import SequenceModel
from springtide_client.model.inputs import ModelInputs
from springtide_client.schema import Schema

ALL = "TORTURE_EXAMPLES" in os.environ
NAMES = ["din", "sasrec", "hstu", "transformer"]
DIM = 4


def spec_of(**changes: object) -> ModelSpec:
    """Return a spec with a history of items, its time gaps, and a longer sequence that has nothing to do with them."""
    fields = {
        "labels": ("click", "order"),
        "categorical": ("user_id", "item_id"),
        "sequence": ("history", "queries", "history_gaps"),
        "dense": ("age",),
        "share": {"history": "item_id"},
        "max_length": {"history": 5, "history_gaps": 5, "queries": 8},
    }
    return ModelSpec.of(Schema(**{**fields, **changes}), DIM)


def build(name: str, spec: ModelSpec, **options: object) -> SequenceModel:
    """Return a model whose parameters are all random."""
    model = build_model(ModelConfig(name=name, options=options), spec, seed=0)
    assert isinstance(model, SequenceModel)
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=draw)
    return model


def random_inputs(spec: ModelSpec, samples: int, longest: int) -> ModelInputs:
    draw = torch.Generator().manual_seed(samples + longest)
    most = torch.tensor([field.max_length for field in spec.sequence]).clamp(max=longest)
    length = (torch.rand(samples, spec.num_sequence, generator=draw) * (most + 1)).long()
    length[:, 2] = length[:, 0]  # the time gaps' is the history's
    rows = torch.randn(samples, spec.num_sequence, longest, spec.dim, generator=draw)
    return ModelInputs(
        torch.randn(samples, spec.num_categorical, spec.dim, generator=draw),
        torch.randn(samples, 0, spec.dim),
        rows * (torch.arange(longest) < length[..., None])[..., None],
        length,
        torch.randn(samples, spec.num_dense, generator=draw),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_depend_on_the_target_its_history_and_the_time_gaps(name: str) -> None:
    spec = spec_of()
    model = build(name, spec, time_gaps="history_gaps")
    inputs = random_inputs(spec, 6, 5)
    inputs.sequence_length[:] = torch.tensor([5, 3, 5])
    parts = [inputs.categorical, inputs.sequence]
    for part in parts:
        part.requires_grad_()
    seen: list[Tensor] = []
    model.encoder.register_forward_hook(lambda module, args, interest: seen.append(interest))
    model(*inputs)
    target, sequence = torch.autograd.grad(seen[0].sum(), parts, allow_unused=True, materialize_grads=True)
    assert (target[:, 0] == 0).all()
    assert (target[:, 1] != 0).any() == (name != "sasrec")
    assert (sequence[:, 0] != 0).any()
    assert (sequence[:, 1] == 0).all()
    assert (sequence[:, 2] != 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_beyond_a_length_changes_nothing_and_gets_no_gradient(name: str) -> None:
    spec = spec_of()
    model = build(name, spec, time_gaps="history_gaps")
    inputs = random_inputs(spec, 6, 8)
    is_padding = torch.arange(8) >= inputs.sequence_length[..., None]
    dirty = torch.where(is_padding[..., None], torch.nan, inputs.sequence).requires_grad_()
    logits = model(*inputs._replace(sequence=dirty))
    assert torch.equal(logits, model(*inputs))
    logits.sum().backward()
    assert dirty.grad is not None
    assert torch.isfinite(dirty.grad).all()
    assert (dirty.grad[is_padding] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_only_the_newest_elements_count_under_a_max_length(name: str) -> None:
    spec = spec_of()
    model = build(name, spec, time_gaps="history_gaps", max_length=2)
    inputs = random_inputs(spec, 2, 5)
    inputs.sequence_length[:] = torch.tensor([5, 1, 5])
    sequence = inputs.sequence.clone()
    sequence[:, [0, 2]] = torch.randn(2, 2, 5, DIM)
    history = model.inputs.history(sequence, inputs.sequence_length)
    assert history.length_N.tolist() == [2, 2]
    assert torch.equal(history.rows_NTD, sequence[:, 0, 3:])
    assert history.gaps_NTD is not None
    assert torch.equal(history.gaps_NTD, sequence[:, 2, 3:])
    target = model.inputs.target_ND(inputs.categorical)
    before = model.encoder(target, history)
    sequence[:, [0, 2], :3] = 7.0
    again = model.encoder(target, model.inputs.history(sequence, inputs.sequence_length))
    assert torch.equal(before, again)


@pytest.mark.parametrize("name", NAMES)
def test_exports_give_the_same_logits_for_any_number_of_samples_and_any_length(name: str) -> None:
    spec = spec_of()
    blocks = {} if name == "din" else {"blocks": 2 if name == "sasrec" or ALL else 1}
    model = build(name, spec, time_gaps="history_gaps", max_length=3, **blocks).eval()
    archive = export_model(model, spec)
    program = torch.export.load(io.BytesIO(archive)).module()
    every_inputs = [random_inputs(spec, *shape) for shape in [(1, 1), (7, 8), (4, 2), (0, 1), (3, 5)]]
    for inputs in every_inputs:
        torch.testing.assert_close(program(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    if name != "sasrec" and not ALL:
        return  # an ONNX file takes two seconds
    if not is_possible():
        pytest.skip("the extra onnx is not installed: pip install 'springtide[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    quiet = runtime.SessionOptions()
    quiet.log_severity_level = 3
    session = runtime.InferenceSession(export_onnx(archive), quiet, providers=["CPUExecutionProvider"])
    for inputs in every_inputs:
        [logits] = session.run(["logits"], {name: part.numpy() for name, part in inputs._asdict().items()})
        np.testing.assert_allclose(logits, model(*inputs).detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_beside_a_wide_part_the_scores_begin_at_zero_and_learn(name: str) -> None:
    spec = spec_of()
    model = build(name, spec)
    model.use_wide_part()
    inputs = random_inputs(spec, 6, 5)
    logits = model(*inputs)
    assert (logits == 0).all()
    logits.sum().backward()
    weight, _ = model.last_parameters()
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_close(name: str) -> None:
    spec = spec_of()
    model = build(name, spec, time_gaps="history_gaps")
    inputs = random_inputs(spec, 6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(*inputs)
    torch.testing.assert_close(narrow, model(*inputs), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        ({"share": {}}, {}, r"none of the sequences \(history, queries, history_gaps\) shares .* share = { history = "),
        ({"sequence": (), "share": {}, "max_length": {}}, {}, r"none of the sequences \(none\).* lacks one of the two"),
        ({}, {"target": "user_id"}, r"none of the sequences .* categorical feature \(user_id\)"),
        ({}, {"target": "items"}, "no categorical feature 'items': it has user_id, item_id"),
        ({}, {"sequence": "liked"}, "no sequence 'liked': it has history, queries, history_gaps"),
        (
            {"share": {"history": "item_id", "queries": "item_id"}},
            {},
            r"more than one .*\(item_id and history, item_id and queries\): name options target and sequence",
        ),
        ({}, {"time_gaps": "gaps"}, "no sequence 'gaps'"),
        ({}, {"time_gaps": "history"}, "'history' shares the rows of 'item_id'"),
        ({}, {"time_gaps": "queries"}, r"max_length of 'queries' is 8 and of 'history' 5: .*\[features.queries\]"),
        ({}, {"max_length": 0}, "max_length must be a whole number from 1 to 65536, not 0"),
        ({}, {"heads": 2}, "heads"),
    ],
)
@pytest.mark.parametrize("name", ["din", "transformer"])
def test_wrong_options_are_explained(name: str, changes, options, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_model(ModelConfig(name=name, options=options), spec_of(**changes), seed=0)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("din", {"attention": []}, "attention must name at least one"),
        ("din", {"attention": 5}, "attention must be a list of layer sizes"),
        ("sasrec", {"blocks": 0}, "blocks must be a whole number"),
        ("hstu", {"num_heads": 1.5}, "num_heads must be a whole number"),
        ("transformer", {"hidden": "64"}, "hidden must be a whole number"),
    ],
)
def test_wrong_sizes_are_explained(name: str, options, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_model(ModelConfig(name=name, options=options), spec_of(), seed=0)


def test_where_two_sequences_share_the_targets_rows_an_option_chooses() -> None:
    spec = spec_of(share={"history": "item_id", "queries": "item_id"})
    assert build("din", spec, sequence="queries").inputs.sequence == 1
    assert build("din", spec, target="item_id", sequence="history").inputs.sequence == 0
