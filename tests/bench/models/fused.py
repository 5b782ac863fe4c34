"""models.fused: parts of nets as torch has them, beside fused forms, forward and backward on the CPU.

`springtide bench models.fused`: DCN's cross layer as one autograd function and by torch.compile, a perceptron by
torch.compile, dropout whose mask is kept as bits. Torch's own is what nets use ("ours"); a fused form would have to be
ahead. One thread; results are compared before anything is timed.
"""

# N samples, I inputs, H outputs, D bytes of a mask
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed

NUM_INPUTS = 26 * 16 + 2 * 13  # rows of 16 numbers, 13 dense features
HIDDEN = (512, 256)
RATE = 0.1

Part = Callable[[], tuple[Tensor, ...]]  # forward and backward; returns the gradients


class FusedCross(torch.autograd.Function):
    """x0 * (W x + b) + x, in two calls and with one product saved."""

    @staticmethod
    def forward(ctx: Any, first_NI: Tensor, x_NI: Tensor, weight_II: Tensor, bias_I: Tensor) -> Tensor:
        product_NI = torch.addmm(bias_I, x_NI, weight_II.t())
        ctx.save_for_backward(first_NI, x_NI, weight_II, product_NI)
        return torch.addcmul(x_NI, first_NI, product_NI)

    @staticmethod
    def backward(ctx: Any, grads_NI: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        first_NI, x_NI, weight_II, product_NI = ctx.saved_tensors
        inner_NI = grads_NI * first_NI
        return (
            grads_NI * product_NI,
            torch.addmm(grads_NI, inner_NI, weight_II),
            inner_NI.t() @ x_NI,
            inner_NI.sum(0),
        )


class BitmaskDropout(torch.autograd.Function):
    """Keeps eight numbers of the mask in a byte."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        keep = torch.rand(x.shape) >= RATE
        places_8 = torch.arange(8, dtype=torch.uint8)
        bits_D = (keep.view(-1, 8).to(torch.uint8) << places_8).sum(1, dtype=torch.uint8)
        ctx.save_for_backward(bits_D)
        return x * keep / (1 - RATE)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Tensor:  # type: ignore[override]
        (bits_D,) = ctx.saved_tensors
        keep = ((bits_D[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).view(grads.shape)
        return grads * keep / (1 - RATE)


def parts(num_samples: int) -> dict[str, dict[str, Part]]:
    """Return torch's own first, then the others, by part."""
    x_NI = torch.randn(num_samples, NUM_INPUTS, requires_grad=True)
    linear = nn.Linear(NUM_INPUTS, NUM_INPUTS)
    perceptron = nn.Sequential(
        nn.Linear(NUM_INPUTS, HIDDEN[0]), nn.ReLU(), nn.Linear(*HIDDEN), nn.ReLU(), nn.Linear(HIDDEN[1], 1)
    )
    hidden_NH = torch.randn(num_samples, HIDDEN[0], requires_grad=True)

    def both(forward: Callable[[Tensor], Tensor], leaves: list[Tensor]) -> Part:
        grads = torch.ones_like(forward(leaves[0]))
        return lambda: torch.autograd.grad(forward(leaves[0]), leaves, grads)

    def cross(x: Tensor) -> Tensor:
        crossed: Tensor = x * linear(x) + x
        return crossed

    def fused_cross(x: Tensor) -> Tensor:
        crossed: Tensor = FusedCross.apply(x, x, linear.weight, linear.bias)  # type: ignore[no-untyped-call]
        return crossed

    def bitmask(x: Tensor) -> Tensor:
        dropped: Tensor = BitmaskDropout.apply(x)  # type: ignore[no-untyped-call]
        return dropped

    of_cross, of_perceptron = [x_NI, *linear.parameters()], [x_NI, *perceptron.parameters()]
    return {
        "cross layer": {
            "torch": both(cross, of_cross),
            "one autograd function": both(fused_cross, of_cross),
            "torch.compile": both(torch.compile(cross), of_cross),
        },
        "perceptron": {
            "torch": both(perceptron, of_perceptron),
            "torch.compile": both(torch.compile(perceptron), of_perceptron),
        },
        "dropout": {
            "torch": both(lambda x: dropout(x, RATE), [hidden_NH]),
            "bitmask": both(bitmask, [hidden_NH]),
        },
    }


def check(name: str, forms: dict[str, Part]) -> None:
    """Compare gradients; of dropout, whose masks differ, the share that is kept."""
    expected, *others = (form() for form in forms.values())
    for found in others:
        for ours, theirs in zip(expected, found, strict=True):
            left, right = (ours.mean(), theirs.mean()) if name == "dropout" else (ours, theirs)
            if not torch.allclose(left, right, rtol=1e-2, atol=1e-2):
                fail(f"gradients of {name}")


def rate_of(part: Part, steps: int, num_samples: int) -> Callable[[], float]:
    """Return a run of so many steps that gives samples per second."""
    return lambda: timed(lambda: [part() for _ in range(steps)], num_samples)


def main() -> None:
    options = arguments(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = []
    for num_samples in (256,) if options.quick else (256, 4096):
        steps = 1 if options.quick else max(1, 40_000 // num_samples)
        for name, forms in parts(num_samples).items():
            check(name, forms)
            runs = {form: rate_of(part, steps, steps * num_samples) for form, part in forms.items()}
            rates = alternate(runs, repeats=1 if options.quick else 7)
            ours = rates.pop("torch")
            cases.append(Case(f"{name}, {num_samples} samples", "samples/s", ours, rates))
    report("models.fused", cases, options, packages=("torch",))
