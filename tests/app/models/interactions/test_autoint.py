import torch

from tests.app.models.interactions.plain import Sample, check_against

HEADS, HEAD_DIM = 2, 3


def attention(sample: Sample, num_layers: int) -> torch.Tensor:
    x = [*sample.vectors, *sample.dense_vectors]
    for layer in range(num_layers):
        name = f"attention.{layer}"
        query, key, value, residual = (
            [sample.linear(f"{name}.{part}", vector) for vector in x] for part in ("query", "key", "value", "residual")
        )
        after = []
        for v in range(len(x)):
            heads = []
            for head in range(HEADS):
                part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
                powers = [torch.exp(query[v][part] @ other[part]) for other in key]
                heads.append(sum(p / sum(powers) * other[part] for p, other in zip(powers, value, strict=True)))
            after.append((torch.cat(heads) + residual[v]).clamp(min=0))
        x = after
    return torch.cat(x)


def beside_a_perceptron(sample: Sample, is_offset: bool):
    deep = sample.perceptron("deep", sample.inputs, last_is_linear=False)
    last = sample.linear("last", torch.cat([attention(sample, 2), deep]))
    return last if is_offset else [a + b for a, b in zip(last, sample.first_order(), strict=True)]


def alone(sample: Sample, is_offset: bool):
    last = sample.linear("last", attention(sample, 1))
    return last if is_offset else [a + b for a, b in zip(last, sample.first_order(), strict=True)]


def test_it_equals_a_plain_reference():
    options = {"heads": HEADS, "head_dim": HEAD_DIM}
    check_against(beside_a_perceptron, "autoint", options | {"hidden": [7]})
    check_against(alone, "autoint", options | {"layers": 1, "hidden": []}, dims={0: 4})
