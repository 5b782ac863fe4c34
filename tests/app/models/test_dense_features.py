"""Dense features are standardized by what was counted before; without a count they are zero."""

import torch

from springtide.app.models.dense_features import DenseFeatureNormalizer


def test_a_feature_without_a_value_so_far_is_zero() -> None:
    normalizer = DenseFeatureNormalizer(2)
    x = torch.tensor([[1e6, float("nan")], [3.0, float("nan")]])
    assert normalizer(x).tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
    normalizer.observe(x)
    assert normalizer(x)[:, 0].tolist() != [0, 0]
    assert normalizer(torch.ones(1, 2))[0, 1] == 0  # only missing values were counted of it
