"""gpu.ranks: what a rank costs on a GPU: the step of gpu.train as one trainer, and as the one rank of an NCCL group.

That rank has nothing to exchange, and must cost 1 % at most. Then it exchanges everything with itself: keys, rows,
gradients, samples, the net. That is the cost of the path, without a link. Needs an NVIDIA GPU, and exits with a message
without one.
"""

import sys
from dataclasses import replace
from functools import partial

from springtide.embeddings.sharding.exchange import Exchange
from tests.bench.gpu.train import AGREES, FULL, QUICK, STEPS, Bench, gpu, learn, make_batches, switched
from tests.bench.harness.report import Case, alternate, arguments, fail, report, save_lines, timed
from tests.support.one_rank import one_rank

SWITCHES = STEPS[2]  # what several ranks have: no CUDA graphs
AGAINST_ONE_TRAINER = 0.99


def run(bench: Bench, device: str) -> list[Case]:
    """Run every case; device: where the group's tensors are."""
    with one_rank(device) as with_itself, switched(SWITCHES):
        alone = Exchange(with_itself.group, device)
        cases = []
        for dim in bench.size.dims:
            for batch_size in bench.size.batch_sizes:
                cases += cases_of(bench, dim, batch_size, {"": None, "NCCL": alone, "itself": with_itself})
        return cases


def cases_of(bench: Bench, dim: int, batch_size: int, exchanges: dict[str, Exchange | None]) -> list[Case]:
    """Compare what they learn, then alternate."""
    batches = make_batches(bench.size.num_batches, batch_size)
    learners = {
        name: bench.learner(dim, batch_size, SWITCHES, exchange=exchange) for name, exchange in exchanges.items()
    }
    losses = {name: learn(learner, batches, ahead=True) for name, learner in learners.items()}
    if not (losses["NCCL"] == losses[""] and abs(losses["itself"] - losses[""]) <= AGREES):
        fail(f"the logloss is {losses['']:.4f}, as a rank {losses['NCCL']:.4f}, exchanging {losses['itself']:.4f}")
    num_samples = len(batches) * batch_size

    def rate_of(name: str) -> float:
        return timed(lambda: bench.finish(learn(learners[name], batches, ahead=True)), num_samples)

    rates = alternate({name: partial(rate_of, name) for name in learners}, repeats=bench.size.repeats)
    peers, title = {"one trainer": rates[""]}, f"dim {dim}, B {batch_size}"
    return [
        Case(f"1 rank under NCCL, {title}", "samples/s", rates["NCCL"], peers, AGAINST_ONE_TRAINER, contest=False),
        Case(f"1 rank that exchanges with itself, {title}", "samples/s", rates["itself"], peers),
    ]


def main() -> None:
    options = arguments(__doc__)
    try:
        machine = gpu()
    except ValueError as error:
        sys.exit(f"gpu.ranks: {error}")
    size = QUICK if options.quick else replace(FULL, table_bytes="8GiB")  # of three learners at once
    cases = run(Bench(machine, size), "cuda")
    report("gpu.ranks", cases, options, packages=("torch", "cupy-cuda13x", "numpy"))
    save_lines(options, cases)
