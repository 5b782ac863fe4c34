from tests.app.models.interactions.plain import Sample, check_against


def reference(sample: Sample, is_offset: bool):
    deep = sample.perceptron("deep", sample.inputs, last_is_linear=True)
    if is_offset:
        return deep
    return [a + b + c for a, b, c in zip(deep, sample.first_order(), sample.linear_dense(), strict=True)]


def test_it_equals_a_plain_reference():
    check_against(reference, "wide_and_deep", {"hidden": [7, 5]})
    check_against(reference, "wide_and_deep", {"hidden": []}, dims={0: 4})
