import torch

from springtide.app.models.field_vectors import DenseVectors, FieldProjection
from tests.support.model_specs import spec_of_sizes


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
