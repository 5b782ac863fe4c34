from tests.app.models.interactions.plain import Sample, check_against


def reference(sample: Sample, is_offset: bool):
    vectors, scores = sample.vectors, []
    for label, weights in enumerate(sample.parameters["weight_LI"]):
        pairs = sum(weights[n] * (vectors[i] @ vectors[j]) for n, (i, j) in enumerate(sample.pairs()))
        scores.append(pairs if is_offset else pairs + sample.first_order()[label] + sample.linear_dense()[label])
    return scores


def test_it_equals_a_plain_reference():
    check_against(reference, "fwfm")
    check_against(reference, "fwfm", dims={0: 4, 2: 3})
