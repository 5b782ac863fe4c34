import pytest

from springtide.app.models.config import ModelConfig
from springtide.app.models.registry import build_model
from tests.app.models.interactions.plain import Sample, check_against
from tests.support.model_specs import spec_of_sizes


def fwfm(sample: Sample, is_offset: bool):
    vectors, scores = sample.vectors, []
    for label, weights in enumerate(sample.parameters["weight_LI"]):
        pairs = sum(weights[n] * (vectors[i] @ vectors[j]) for n, (i, j) in enumerate(sample.pairs()))
        scores.append(pairs if is_offset else pairs + sample.first_order()[label] + sample.linear_dense()[label])
    return scores


def test_fwfm_equals_a_plain_reference():
    check_against(fwfm, "fwfm")
    check_against(fwfm, "fwfm", dims={0: 4, 2: 3})


def ffm(sample: Sample, is_offset: bool):
    num = sample.spec.dim // len(sample.rows)

    def part(of: int, meeting: int):
        return sample.vectors[of][meeting * num : (meeting + 1) * num]

    products = [part(i, j) @ part(j, i) for i, j in sample.pairs()]
    if is_offset:
        weights_LI = sample.parameters["weight_LI"]
        return [sum(w * product for w, product in zip(w_I, products, strict=True)) for w_I in weights_LI]
    pairs = (6 / len(sample.rows)) ** 0.5 * sum(products)
    return [a + b + pairs for a, b in zip(sample.first_order(), sample.linear_dense(), strict=True)]


def test_ffm_equals_a_plain_reference():
    check_against(ffm, "ffm")
    check_against(ffm, "ffm", dim=7, dims={0: 4})  # one number is left over


def test_rows_too_short_for_the_fields_are_refused_with_a_dim_that_fits():
    with pytest.raises(ValueError, match=r"among the 5 fields: raise \[table\] dim from 4 to 20, or to another multip"):
        build_model(ModelConfig(name="ffm"), spec_of_sizes(5, dim=4), seed=0)


def logistic(sample: Sample, is_offset: bool):
    linear = sample.linear_dense()
    return linear if is_offset else [a + b for a, b in zip(sample.first_order(), linear, strict=True)]


def test_logistic_equals_a_plain_reference():
    check_against(logistic, "logistic", dims={0: 4})
