import pytest
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.layers import DenseVectors, FieldProjection
from springtide.app.models.registry import build_model
from tests.support.model_specs import spec_of_sizes


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("dcn", {"layers": 0}, "layers must be a whole number from 1 to 65536, not 0"),
        ("dcn", {"rank": -1}, "rank must be a whole number from 0 to 65536, not -1"),
        ("dcn", {"structure": "both"}, "structure must be one of parallel, stacked, not 'both'"),
        ("xdeepfm", {"maps": []}, "maps must have at least one layer"),
        ("pnn", {"product": "cross"}, "product must be one of inner, outer, not 'cross'"),
        ("autoint", {"heads": True}, "heads must be a whole number"),
        ("finalmlp", {"heads": 3}, "heads = 3 must divide the last layers of first = "),
        ("finalmlp", {"first": []}, "must divide"),
        ("finalmlp", {"first_gate": "c0"}, "first_gate must be a list of names"),
        ("finalmlp", {"first_gate": ["x"]}, "has no id feature 'x': it has c0, c1"),
        ("fwfm", {"hidden": [3]}, "hidden"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(name, options, says):
    with pytest.raises(ValueError, match=says):
        build_model(ModelConfig(name=name, options=options), spec_of_sizes(2), seed=0)


def test_vectors_of_narrower_rows_start_as_they_are_and_learn_to_use_the_full_width():
    projection = FieldProjection(spec_of_sizes(2, 1, 1, dim=4, dims={1: 2, 3: 2, 2: 3}))
    fields_NED = torch.randn(5, 4, 4)
    fields_NED[:, [1, 3], 2:] = 0
    fields_NED[:, 2, 3:] = 0
    assert torch.equal(projection(fields_NED), fields_NED)
    assert [weight.shape for weight in projection.weights] == [(2, 4), (3, 4)]
    with torch.no_grad():
        projection.weights[0].copy_(torch.ones(2, 4))
    after_NED = projection(fields_NED)
    for place in (1, 3):
        torch.testing.assert_close(after_NED[:, place], fields_NED[:, place].sum(1, keepdim=True).expand(-1, 4))
    assert torch.equal(after_NED[:, [0, 2]], fields_NED[:, [0, 2]])


def test_rows_of_one_width_need_no_parameters():
    projection, fields_NED = FieldProjection(spec_of_sizes(2, dim=4)), torch.randn(3, 2, 4)
    assert projection(fields_NED) is fields_NED
    assert not list(projection.parameters())


def test_a_dense_feature_scales_its_vector_and_a_missing_one_has_its_own():
    vectors = DenseVectors(2, 3)
    found_NFD = vectors(torch.tensor([[2.0, 0.0, 0.0, 1.0]]))
    torch.testing.assert_close(found_NFD[0, 0], 2 * vectors.value_FD[0])
    torch.testing.assert_close(found_NFD[0, 1], vectors.missing_FD[1])
