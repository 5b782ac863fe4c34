import torch

from tests.app.models.interactions.plain import Sample, check_against


def inner(sample: Sample, is_offset: bool):
    vectors = sample.vectors
    return scores(sample, [vectors[i] @ vectors[j] for i, j in sample.pairs()], is_offset)


def outer(sample: Sample, is_offset: bool):
    """Sum the outer products of every field with every field."""
    matrix = sum(torch.outer(left, right) for left in sample.vectors for right in sample.vectors)
    return scores(sample, list(matrix.flatten()), is_offset)


def scores(sample: Sample, products: list[torch.Tensor], is_offset: bool):
    deep = sample.perceptron("deep", torch.cat([sample.inputs, torch.stack(products)]), last_is_linear=True)
    return deep if is_offset else [a + b for a, b in zip(deep, sample.first_order(), strict=True)]


def test_it_equals_a_plain_reference():
    check_against(inner, "pnn", {"hidden": [7]}, dims={1: 4})
    check_against(outer, "pnn", {"hidden": [7], "product": "outer"})
