import torch

from tests.app.models.interactions.plain import Sample, check_against

HEADS = 2
SIZES = {"first": [8, 4], "second": [6], "heads": HEADS, "gate_hidden": 3}


def gate(sample: Sample, stream: int, fields: list[int]) -> torch.Tensor:
    name = f"gates.{stream}"
    if not fields:
        return sample.parameters[f"{name}.gate_I"]
    hidden = sample.linear(f"{name}.net.0", torch.cat([sample.rows[e] for e in fields])).clamp(min=0)
    return sample.linear(f"{name}.net.2", hidden)


def scores(sample: Sample, is_offset: bool, fields: list[list[int]]):
    outputs = []
    for stream in range(2):
        gates = gate(sample, stream, fields[stream])
        gated = torch.stack([2 / (1 + torch.exp(-g)) * x for g, x in zip(gates, sample.inputs, strict=True)])
        outputs.append(sample.perceptron(f"streams.{stream}", gated, last_is_linear=False))
    first, second = outputs
    linear, found = sample.linear("fusion.linear", torch.cat(outputs)), []
    for label in range(sample.spec.num_labels):
        total = linear[label] if is_offset else linear[label] + sample.first_order()[label]
        for head in range(HEADS):
            a, b = (x[head * len(x) // HEADS : (head + 1) * len(x) // HEADS] for x in (first, second))
            total = total + a @ sample.parameters["fusion.weight_LHAB"][label, head] @ b
        found.append(total)
    return found


def test_it_equals_a_plain_reference():
    check_against(lambda sample, is_offset: scores(sample, is_offset, [[], []]), "finalmlp", SIZES)
    gates = {"first_gate": ["c0"], "second_gate": ["c1", "m0"]}
    check_against(lambda sample, is_offset: scores(sample, is_offset, [[0], [1, 2]]), "finalmlp", SIZES | gates)
