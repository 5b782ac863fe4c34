import torch

from tests.app.models.interactions.plain import Sample, check_against


def reference(sample: Sample, is_offset: bool):
    first = x = [*sample.vectors, *sample.dense_vectors]
    sums = []
    for layer in range(2):
        weights = sample.parameters[f"cin.layers.{layer}.weight"]
        maps = []
        for weight in weights:
            total = torch.zeros(sample.spec.dim)
            for i, left in enumerate(x):
                for j, right in enumerate(first):
                    total = total + weight[i * len(first) + j] * left * right
            maps.append(total)
        x = maps
        sums += [one.sum() for one in maps]
    deep = sample.perceptron("deep", sample.inputs, last_is_linear=False)
    last = sample.linear("last", torch.cat([torch.stack(sums), deep]))
    if is_offset:
        return last
    return [a + b + c for a, b, c in zip(last, sample.first_order(), sample.linear_dense(), strict=True)]


def test_it_equals_a_plain_reference():
    check_against(reference, "xdeepfm", {"maps": [4, 3], "hidden": [7]})
    check_against(reference, "xdeepfm", {"maps": [2, 2], "hidden": [3]}, dims={2: 4})
