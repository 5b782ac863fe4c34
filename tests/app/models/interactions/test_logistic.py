from tests.app.models.interactions.plain import Sample, check_against


def reference(sample: Sample, is_offset: bool):
    linear = sample.linear_dense()
    return linear if is_offset else [a + b for a, b in zip(sample.first_order(), linear, strict=True)]


def test_it_equals_a_plain_reference():
    check_against(reference, "logistic", dims={0: 4})
