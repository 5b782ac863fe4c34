import itertools

import torch

from tests.app.models.interactions.plain import Sample, check_against


def reference(sample: Sample, is_offset: bool):
    bottom = sample.perceptron("bottom", sample.dense, last_is_linear=False)
    vectors = [bottom, *sample.vectors]
    products = [vectors[i] @ vectors[j] for i, j in itertools.combinations(range(len(vectors)), 2)]
    top = sample.perceptron("top", torch.cat([*sample.rows, bottom, torch.stack(products)]), last_is_linear=True)
    if is_offset:
        return top
    pairs = (6 / len(sample.rows)) ** 0.5 * sum(products)
    return [a + b + pairs for a, b in zip(top, sample.first_order(), strict=True)]


def test_it_equals_a_plain_reference():
    check_against(reference, "dlrm", {"bottom": [5], "top": [7]})
    check_against(reference, "dlrm", {"bottom": [5], "top": [7]}, dims={1: 3})
