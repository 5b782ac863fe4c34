"""train.ranks: DLRM over one DynamicEmbedding whose rows are spread over two ranks of one thread each, under Gloo.

Against one process of two threads with the same batches, and against TorchRec's row-wise sharded bags on two ranks with
the same net, over row numbers, for it has no table that takes any id. Then with rows and gradients in int8 over a link
of 1 Gbit/s between two hosts (network namespaces, which need root), against float32 over the same link.
"""

import os
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

from tests.bench.harness.hosts import two_hosts
from tests.bench.harness.ranks import Ranks, Waits, run_in_turn
from tests.bench.harness.report import Case, argument_parser, fail, report

FIELDS, DIM, IDS_A_FIELD, BATCH = 26, 16, 100_000, 4096
STEPS, WARM_UP, REPEATS = 60, 15, 3
WIDE_DIM = 128  # rows so wide that a link of 1 Gbit/s limits two hosts of this speed
LEARNING_RATE = 0.05  # of the rows
AGAINST_ONE_PROCESS, AGAINST_TORCHREC, INT8_AGAINST_FLOAT32 = 0.8, 2.0, 1.5
TORCHREC = "TorchRec"


def learn(
    rank: int,
    num_ranks: int,
    precision: str,
    num_steps: int,
    *,
    batch: int = BATCH,
    dim: int = DIM,
    num_threads: int | None = None,
) -> dict[str, float]:
    """Learn on one rank; return rate, loss, bytes sent, share of time in collectives, and how much steps vary.

    batch: of all ranks together.
    """
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from springtide.app.models.interactions.dlrm import DLRM
    from springtide.app.models.interface import FieldSpec, ModelSpec
    from tests.bench.workloads.keys import positions

    waits = Waits()
    torch.set_num_threads(num_threads or (1 if num_ranks > 1 else 2))
    group = None
    if num_ranks > 1:
        dist.all_to_all_single, dist.all_reduce = map(waits.timed, (dist.all_to_all_single, dist.all_reduce))
        group = dist.group.WORLD
    rows: Any
    if precision == TORCHREC:
        from torchrec_rows import torchrec_rows

        rows, num_sent = torchrec_rows(FIELDS, IDS_A_FIELD, dim, LEARNING_RATE), int
    else:
        from springtide import DynamicEmbedding

        rows = embedding = DynamicEmbedding(
            dim,
            "1GiB",
            optimizer={"name": "rowwise-adagrad", "lr": LEARNING_RATE},
            process_group=group,
            forward_precision=precision,
            backward_precision=precision,
            seed=1,
        )
        num_sent = lambda: 0 if embedding.shards is None else embedding.shards.exchange.bytes_sent.total()  # noqa: E731
    torch.manual_seed(1)
    fields = tuple(FieldSpec(name=f"f{number}", dim=dim, owner=f"f{number}") for number in range(FIELDS))
    net: Any = DLRM(ModelSpec(categorical=fields, labels=("click",), dim=dim))
    parallel = net if group is None else DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    part, offset = batch // num_ranks, np.arange(FIELDS) * IDS_A_FIELD
    num_samples = (num_steps + WARM_UP) * batch
    ids = np.stack([positions("zipf", num_samples, IDS_A_FIELD, seed=field) for field in range(FIELDS)], axis=1)
    labels = ((ids[:, :4] % 7).sum(axis=1) > 12).astype(np.float32)
    all_ids, all_labels = torch.from_numpy(ids if precision == TORCHREC else ids + offset), torch.from_numpy(labels)
    empty = torch.zeros(part, 0, dim), torch.zeros(part, 0, 1, dim), torch.zeros(part, 0), torch.zeros(part, 0)
    losses, times, start, sent_before = [], [], 0.0, 0
    for step in range(num_steps + WARM_UP):
        if step == WARM_UP:
            start, waits.seconds = time.perf_counter(), 0.0
            sent_before = num_sent()
        times.append(time.perf_counter())
        first = step * batch + rank * part
        pooled, sequence, length, dense = empty
        logits = parallel(rows(all_ids[first : first + part]), pooled, sequence, length, dense)[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, all_labels[first : first + part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start
    steps = np.diff(times[WARM_UP:])
    return {
        "rate": num_steps * batch / seconds,
        "loss": float(np.mean(losses[-10:])),
        "bytes_a_sample": (num_sent() - sent_before) / (num_steps * part),
        "waited": waits.seconds / seconds,
        "spread": float(np.std(steps) / np.mean(steps)),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--link", default="1gbit", help='rate of the link between two hosts; "": leave this part out')
    options = parser.parse_args()
    num_steps, repeats = (4, 1) if options.quick else (STEPS, REPEATS)
    ranks_of = partial(Ranks, learn, num_steps=num_steps)
    with ExitStack() as stack:
        contenders = {
            "one process, 2 threads": ranks_of(1, precision="float32"),
            "2 ranks": ranks_of(2, precision="float32"),
            "2 ranks, int8": ranks_of(2, precision="int8"),
        }
        torchrec = options.peers / "fbgemm"
        if (torchrec / ".ready").exists():
            contenders["2 ranks, TorchRec"] = ranks_of(2, precision=TORCHREC, venv=torchrec)
        if options.link and os.geteuid() == 0:
            hosts = tuple(stack.enter_context(two_hosts(options.link)))
            for precision in ("float32", "bfloat16", "int8"):
                for dim in (DIM, WIDE_DIM):
                    runs = ranks_of(2, precision=precision, dim=dim, hosts=hosts)
                    contenders[f"2 hosts, dim {dim}, {precision}"] = runs
        run_in_turn(contenders.values(), repeats)
    for name, contender in contenders.items():
        print(f"{name}: {contender.describe()}")
    alone, ranks = contenders["one process, 2 threads"], contenders["2 ranks"]
    if abs(alone.median_of("loss") - ranks.median_of("loss")) > 0.01:
        fail("two ranks learned something else than one process")
    mine, theirs = ranks.all_of("rate"), {"one process, 2 threads": alone.all_of("rate")}
    cases = [Case("2 ranks of one thread", "samples/s", mine, theirs, needed=AGAINST_ONE_PROCESS)]
    peers = {TORCHREC: "missing"}
    if "2 ranks, TorchRec" in contenders:
        peers = {TORCHREC: "1.8.0, fbgemm-gpu-cpu 1.8.0"}
        theirs = {TORCHREC: contenders["2 ranks, TorchRec"].all_of("rate")}
        cases.append(Case("2 ranks beside TorchRec", "samples/s", mine, theirs, needed=AGAINST_TORCHREC))
    for dim in (DIM, WIDE_DIM):
        if (int8 := contenders.get(f"2 hosts, dim {dim}, int8")) is not None:
            float32 = {"float32": contenders[f"2 hosts, dim {dim}, float32"].all_of("rate")}
            name = f"2 hosts, {options.link}, dim {dim}, int8"
            rates = int8.all_of("rate")
            cases.append(Case(name, "samples/s", rates, float32, needed=INT8_AGAINST_FLOAT32, contest=False))
    report("train.ranks", cases, options, packages=("torch", "numba", "numpy"), peers=peers)
