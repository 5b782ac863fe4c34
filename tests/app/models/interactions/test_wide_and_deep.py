from tests.app.models.interactions.plain import Sample, check_against


def wide_and_deep(sample: Sample, is_offset: bool):
    deep = sample.perceptron("deep", sample.inputs, last_is_linear=True)
    if is_offset:
        return deep
    return [a + b + c for a, b, c in zip(deep, sample.first_order(), sample.linear_dense(), strict=True)]


def test_wide_and_deep_equals_a_plain_reference():
    check_against(wide_and_deep, "wide_and_deep", {"hidden": [7, 5]})
    check_against(wide_and_deep, "wide_and_deep", {"hidden": []}, dims={0: 4})


def deepfm(sample: Sample, is_offset: bool):
    deep = sample.perceptron("deep", sample.inputs, last_is_linear=True)
    if is_offset:
        return deep
    vectors = sample.vectors
    pairs = (6 / len(vectors)) ** 0.5 * sum(vectors[i] @ vectors[j] for i, j in sample.pairs())
    return [a + b + c + pairs for a, b, c in zip(deep, sample.first_order(), sample.linear_dense(), strict=True)]


def test_deepfm_equals_a_plain_reference():
    check_against(deepfm, "deepfm", {"hidden": [7]})
    check_against(deepfm, "deepfm", {"hidden": [7]}, dims={0: 4, 2: 3})
