"""train.learner_ranks: the trainer's own step, DLRM over 26 fields, on two ranks of one thread each, under Gloo.

Against one process of two threads with the same batches: with and without the wide part, with the next batch known
(its keys are at their owners, who fetch rows, before this one is computed) and not known. With `--links` (network
namespaces, which need root) also in int8 between two hosts, whose nets exchange gradients every 1, 4, 16 batches.
"""

import time
from functools import partial
from typing import Any

from tests.bench.harness.hosts import two_hosts
from tests.bench.harness.ranks import Ranks, Waits, run_in_turn
from tests.bench.harness.report import Case, argument_parser, report

FIELDS, DIM, IDS_A_FIELD, BATCH = 26, 16, 100_000, 4096
STEPS, WARM_UP, REPEATS = 40, 10, 3
AGAINST_ONE_PROCESS = 0.8
ACCUMULATED = 1, 4, 16  # batches whose gradients of the net travel at once
COLLECTIVES = "_all_to_all", "_all_gather", "_all_reduce"


def learner_of(num_ranks: int, exchange: Any, precision: str, *, wide: bool = False, accumulate: int = 1) -> Any:
    """The learner of a rank, with one thread, or of one process, with two."""
    from springtide.app.training.config import TableSettings, TrainConfig
    from springtide.embeddings.sharding.row_format import Precision
    from springtide_client.schema import Schema
    from tests.bench.quality.one_pass import RunConfig, make_learner

    threads = 1 if num_ranks > 1 else 2
    config = RunConfig(
        schema=Schema(labels=("click",), categorical=tuple(f"f{number}" for number in range(FIELDS))),
        table=TableSettings(device_bytes=1 << 30, dim=DIM),
        train=TrainConfig(
            threads=threads, batch_size=BATCH, min_batch_size=0, bfloat16=False, accumulate_batches=accumulate
        ),
    ).with_model(wide=wide)
    return make_learner(config, exchange=exchange, precision=Precision(rows=precision, gradients=precision))


def batches_of(rank: int, num_ranks: int, num_steps: int) -> list[Any]:
    """A rank's part of each step's batch."""
    import numpy as np

    from springtide.stream.columns import Batch
    from springtide_client.features import Features
    from tests.bench.workloads.keys import positions
    from tests.support.batches import batch_of

    part, num_samples = BATCH // num_ranks, num_steps * BATCH
    ids = np.stack([positions("zipf", num_samples, IDS_A_FIELD, seed=field) for field in range(FIELDS)], axis=1)
    is_click_N = (ids[:, :4] % 7).sum(axis=1) > 12

    def part_of(step: int) -> Batch:
        here = slice(step * BATCH + rank * part, step * BATCH + (rank + 1) * part)
        return batch_of(Features(ids[here], (), np.zeros((part, 0), np.float32)), is_click_N[here], 1000 * step)

    return [part_of(step) for step in range(num_steps)]


def learn(
    rank: int,
    num_ranks: int,
    *,
    num_steps: int,
    precision: str = "float32",
    wide: bool = False,
    lookahead: bool = True,
    accumulate: int = 1,
) -> dict[str, float]:
    """Learn on one rank; return rate, loss, bytes sent a sample, and the share of time in collectives."""
    import numpy as np
    import torch.distributed as dist

    from springtide.embeddings.sharding.exchange import Exchange

    exchange, waits = None, Waits()
    if num_ranks > 1:
        exchange = Exchange(dist.group.WORLD, "cpu")
        for name in COLLECTIVES:
            setattr(exchange, name, waits.timed(getattr(exchange, name)))
    learner = learner_of(num_ranks, exchange, precision, wide=wide, accumulate=accumulate)
    part, batches = BATCH // num_ranks, batches_of(rank, num_ranks, num_steps + WARM_UP)
    losses, start, sent_before = [], 0.0, 0
    for step, batch in enumerate(batches):
        if step == WARM_UP:
            start, waits.seconds = time.perf_counter(), 0.0
            sent_before = 0 if exchange is None else exchange.bytes_sent.total()
        following = batches[step + 1] if lookahead and step + 1 < len(batches) else None
        losses.append(learner.step(batch, following).loss)
    seconds = time.perf_counter() - start
    sent = 0 if exchange is None else exchange.bytes_sent.total() - sent_before
    learner.table.close()
    return {
        "rate": num_steps * BATCH / seconds,
        "loss": float(np.mean(losses[-10:])),
        "bytes_a_sample": sent / (num_steps * part),
        "waited": waits.seconds / seconds,
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--links", default="", help="comma-separated rates, such as 1gbit, of links between two hosts")
    options = parser.parse_args()
    num_steps, repeats = (4, 1) if options.quick else (STEPS, REPEATS)
    contenders, ranks_of = {}, partial(Ranks, learn, num_steps=num_steps)
    for wide in (False, True):
        end = ", wide" if wide else ""
        contenders[f"one process, 2 threads{end}"] = ranks_of(1, wide=wide)
        contenders[f"2 ranks{end}"] = ranks_of(2, wide=wide)
        contenders[f"2 ranks, next unknown{end}"] = ranks_of(2, wide=wide, lookahead=False)
    contenders["2 ranks, int8"] = ranks_of(2, precision="int8")
    run_in_turn(contenders.values(), repeats)
    for link in filter(None, options.links.split(",")):
        with two_hosts(link) as hosts:
            over_link = {
                f"{link}, int8, net every {every}": ranks_of(2, precision="int8", accumulate=every, hosts=tuple(hosts))
                for every in ACCUMULATED
            }
            run_in_turn(over_link.values(), repeats)
            contenders |= over_link
    for name, contender in contenders.items():
        print(f"{name}: {contender.describe()}")
    rates = {name: contender.all_of("rate") for name, contender in contenders.items()}
    cases = []
    for end in ("", ", wide"):
        alone = f"one process, 2 threads{end}"
        peers = {alone: rates[alone]}
        cases.append(Case(f"2 ranks{end}", "samples/s", rates[f"2 ranks{end}"], peers, AGAINST_ONE_PROCESS))
    for link in filter(None, options.links.split(",")):
        peers = {"every batch": rates[f"{link}, int8, net every 1"]}
        for every in ACCUMULATED[1:]:
            name = f"{link}, int8, net every {every}"
            cases.append(Case(name, "samples/s", rates[name], peers, contest=False))
    report("train.learner_ranks", cases, options, packages=("torch", "numba", "numpy"))
