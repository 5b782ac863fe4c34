"""models.attention: a transformer ranker over histories of 200, torch's fused attention beside a naive one.

`springtide bench models.attention [--length 200] [--batch 64] [--dim 32] [--blocks 2]`. Both are the same net with the
same weights, first compared; then they take turns in one process: a training step of the dense net (forward, backward,
Adam; the rows are leaves) and scoring alone. Memory is what torch's allocator holds at most above what it held before.
On the CPU, and on a GPU if there is one; there in bfloat16 too.
"""

# N samples, T elements, D dimension
import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from springtide.app.models.interface import ModelSpec
from springtide.app.models.sequence.encoder_block import MultiHeadAttention, naive_attention
from springtide.app.models.sequence.transformer import Transformer
from springtide_client.model.inputs import ModelInputs
from springtide_client.schema import Schema
from tests.bench.harness.report import argument_parser, describe_run, fail, save

ATTENTIONS = {"sdpa": scaled_dot_product_attention, "naive": naive_attention}
REPEATS, SECONDS = 7, 1.5  # of each measurement


def build(options: argparse.Namespace, device: str) -> tuple[Transformer, ModelInputs]:
    """Return the net and a batch of samples whose histories are of every length, or all of the longest."""
    schema = Schema(
        labels=("click",),
        categorical=("user_id", "item_id"),
        sequence=("history",),
        share={"history": "item_id"},
        max_length={"history": options.length},
    )
    spec = ModelSpec.of(schema, options.dim)
    torch.manual_seed(0)
    net = Transformer(spec, blocks=options.blocks, num_heads=4, head_dim=options.dim // 4, hidden=4 * options.dim)
    nn.init.ones_(net.encoder.norm.weight)  # it starts at zero, where both attentions give the same whatever they do
    length_NS = torch.full((options.batch, 1), options.length)
    if options.ragged:
        length_NS = torch.randint(1, options.length + 1, (options.batch, 1))
    inputs = ModelInputs(
        categorical=torch.randn(options.batch, 2, options.dim),
        pooled=torch.zeros(options.batch, 0, options.dim),
        sequence=torch.randn(options.batch, 1, options.length, options.dim),
        sequence_length=length_NS,
        dense=torch.zeros(options.batch, 0),
    )
    return net.to(device), ModelInputs(*(part.to(device) for part in inputs))


def use(net: nn.Module, attention: str) -> None:
    """Let every block of the net attend in this way."""
    for part in net.modules():
        if isinstance(part, MultiHeadAttention):
            part.attend = ATTENTIONS[attention]


def works(net: Transformer, inputs: ModelInputs, *, bfloat16: bool) -> dict[str, Callable[[], torch.Tensor]]:
    """Return what is measured: a training step and scoring. Each returns what both attentions must agree on."""
    optimizer, device = torch.optim.Adam(net.parameters()), inputs.dense.device.type
    labels_N1 = (torch.arange(len(inputs.dense), device=inputs.dense.device) % 2).float().unsqueeze(1)

    def logits(given: ModelInputs) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            return net(*given)

    def train() -> torch.Tensor:
        sequence = inputs.sequence.detach().requires_grad_()
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(logits(inputs._replace(sequence=sequence)), labels_N1)
        loss.backward()
        optimizer.step()
        assert sequence.grad is not None
        return sequence.grad

    def score() -> torch.Tensor:
        with torch.no_grad():
            return logits(inputs)

    return {"a training step": train, "scoring": score}


def peak_bytes(work: Callable[[], object], device: str) -> int:
    """Return by how much the tensors' memory grows at most during one call."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def rate(work: Callable[[], object], num_samples: int, device: str, seconds: float) -> float:
    """Return samples a second, of calls in a row for about so long."""
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        calls += 1
    return calls * num_samples / (time.perf_counter() - began)


def measure(options: argparse.Namespace, device: str, *, bfloat16: bool) -> Iterator[dict[str, Any]]:
    """Yield a case for each work: samples a second and the peak of memory, sdpa beside naive."""
    net, inputs = build(options, device)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    repeats, seconds = (2, 0.05) if options.quick else (REPEATS, SECONDS)
    for name, work in works(net, inputs, bfloat16=bfloat16).items():
        results = {}
        for attention in ATTENTIONS:
            net.load_state_dict(state)
            use(net, attention)
            results[attention] = work().float()
        if not torch.allclose(results["sdpa"], results["naive"], rtol=0.05 if bfloat16 else 1e-3, atol=1e-5):
            fail(f"{name} on {device}: the attentions differ by {(results['sdpa'] - results['naive']).abs().max()}")
        rates: dict[str, list[float]] = {attention: [] for attention in ATTENTIONS}
        peaks = {}
        for repeat in range(repeats + 1):  # the first warms up
            for attention in ATTENTIONS:
                use(net, attention)
                if repeat == 0:
                    peaks[attention] = peak_bytes(work, device)
                samples_per_second = rate(work, options.batch, device, seconds)
                if repeat:
                    rates[attention].append(samples_per_second)
        median = {attention: statistics.median(values) for attention, values in rates.items()}
        yield {
            "work": name,
            "device": device,
            "dtype": "bfloat16" if bfloat16 else "float32",
            "length": options.length,
            "lengths": "from 1 on" if options.ragged else "all equal",
            "batch": options.batch,
            "dim": options.dim,
            "blocks": options.blocks,
            "samples_per_second": rates,
            "speed_ratio": median["sdpa"] / median["naive"],
            "peak_bytes": peaks,
            "memory_ratio": peaks["sdpa"] / peaks["naive"],
        }


def describe(case: dict[str, Any]) -> str:
    """Return one line."""
    speeds = {name: statistics.median(rates) for name, rates in case["samples_per_second"].items()}
    mib = {name: peak / 2**20 for name, peak in case["peak_bytes"].items()}
    return (
        f"{case['work']} on {case['device']}, {case['dtype']}, histories {case['lengths']}: "
        f"sdpa {speeds['sdpa']:,.0f} samples/s, naive {speeds['naive']:,.0f}, ratio {case['speed_ratio']:.2f}; "
        f"memory {mib['sdpa']:,.1f} MiB, naive {mib['naive']:,.1f}, ratio {case['memory_ratio']:.2f}"
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        options.length, options.batch = 20, 4
    run = describe_run("models.attention", options, packages=("torch",))
    cases = []
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        for bfloat16 in [False, True] if device == "cuda" else [False]:
            for options.ragged in (False, True):
                for case in measure(options, device, bfloat16=bfloat16):
                    cases.append(case)
                    print(describe(case), flush=True)
    save(options, run | {"cases": cases})
