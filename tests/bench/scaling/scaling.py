"""scaling: throughput of 1 to 1,024 ranks, forecast from constants measured here; the forecast is checked on two ranks.

DLRM-small, as in train.ranks. One rank alone says what a step and a sample cost, two what a key and a message cost.
Then two hosts with a limited link are forecast and measured: how far apart they are is printed with the table.
"""

import os
import time
from contextlib import ExitStack

import numpy as np

from tests.bench.harness.hosts import two_hosts
from tests.bench.harness.ranks import Ranks, run_in_turn
from tests.bench.harness.report import arguments, describe_run, save
from tests.bench.scaling.simulator import ALL_TO_ALLS, SMALL_COLLECTIVES, Forecast, Link, Rank, Workload, forecast
from tests.bench.train.ranks import DIM, FIELDS, IDS_A_FIELD, learn
from tests.bench.workloads.keys import zipf_shares

RANKS = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024
SMALL, LARGE = 512, 2048  # samples of a batch of one rank
STEPS, REPEATS = 40, 3
MESSAGES = 400
HOSTS_LINK = "200mbit", 25e6  # as tc has it; bytes a second
GIGABIT = 1.25e8  # bytes a second
LOGGED_ROW_BYTES = 4 * (DIM + 1) + 24  # value and state in float32; key, count, last seen
PACKAGES = "torch", "numba", "numpy"


def message_seconds(num_ranks: int) -> dict[str, float]:
    """Return how long an all-to-all of one number takes, while nothing else happens, and its processor time here."""
    import torch
    import torch.distributed as dist

    number_R, received_R = torch.zeros(num_ranks, dtype=torch.int64), torch.zeros(num_ranks, dtype=torch.int64)
    for count in range(-MESSAGES // 4, MESSAGES):
        if count == 0:
            start, start_cpu = time.perf_counter(), time.process_time()
        dist.all_to_all_single(received_R, number_R)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return {"message": seconds / MESSAGES, "message_cpu": cpu / MESSAGES}


def of_rank(rank: int, num_ranks: int, batch: int, num_steps: int) -> dict[str, float]:
    """Learn on one rank of one thread; return what `learn` does, with the time of a message."""
    if num_steps == 0:
        return message_seconds(num_ranks)
    result = learn(rank, num_ranks, "float32", num_steps, batch=batch * num_ranks, num_threads=1)
    return result | (message_seconds(num_ranks) if num_ranks > 1 else {})


def workload() -> Workload:
    """DLRM-small over ids that follow Zipf's law in each field; its net has 107,000 parameters."""
    shares = np.tile(zipf_shares(IDS_A_FIELD), FIELDS) / FIELDS
    return Workload(shares, FIELDS, 4 * DIM, LOGGED_ROW_BYTES, dense_bytes=4 * 107_000)


def constants(small: Ranks, large: Ranks, two: Ranks, learned: Workload) -> tuple[Rank, float]:
    """Return what a rank takes, and the seconds of a message, from the rates of one rank and of two."""
    step_small, step_large = (size / runs.median_of("rate") for size, runs in ((SMALL, small), (LARGE, large)))
    sample = max(0.0, (step_large - step_small) / (LARGE - SMALL))
    message = two.median_of("message")
    step_two = 2 * LARGE / two.median_of("rate")
    keys = learned.num_unique(LARGE)
    key = max(0.0, step_two - step_large - (ALL_TO_ALLS + SMALL_COLLECTIVES) * message) / (2 * keys)
    spread = max(large.median_of("spread"), two.median_of("spread"))
    return Rank(max(0.0, step_small - SMALL * sample), sample, key, spread), message


def describe(found: Forecast, alone: Forecast) -> str:
    step = 1000 / found.step_seconds
    parts = {name: getattr(found, name) * step / 10 for name in ("compute", "waiting", "wire", "dense", "messages")}
    shares = ", ".join(f"{name} {share:.0f} %" for name, share in parts.items())
    efficiency = found.samples_per_second / alone.samples_per_second / found.num_ranks
    return (
        f"{found.num_ranks:5} ranks: {found.samples_per_second:12,.0f} samples/s, {efficiency:4.0%} of so many alone; "
        f"{shares}; log {found.log_bytes_per_second / 1e6:,.0f} MB/s"
    )


def main() -> None:
    options = arguments(__doc__)
    num_steps, repeats = (4, 1) if options.quick else (STEPS, REPEATS)
    learned = workload()
    with ExitStack() as stack:
        small, large = (Ranks(of_rank, 1, batch=size, num_steps=num_steps) for size in (SMALL, LARGE))
        two = Ranks(of_rank, 2, batch=LARGE, num_steps=num_steps)
        # more than there are cores: only its processor time means something
        four = Ranks(of_rank, 4, batch=LARGE, num_steps=0)
        contenders = [small, large, two, four]
        hosts: Ranks | None = None
        if os.geteuid() == 0:
            names = tuple(stack.enter_context(two_hosts(HOSTS_LINK[0])))
            hosts = Ranks(of_rank, 2, batch=LARGE, num_steps=num_steps, hosts=names)
            contenders.append(hosts)
        run_in_turn(contenders, repeats)
    rank, message = constants(small, large, two, learned)
    post = max(0.0, four.median_of("message_cpu") - two.median_of("message_cpu")) / 2
    document = describe_run("scaling", options, packages=PACKAGES)
    print(
        f"one rank: {rank.step_seconds * 1000:.2f} ms a step, {rank.sample_seconds * 1e6:.1f} us a sample, "
        f"{rank.key_seconds * 1e9:.0f} ns a key and direction, steps vary by {rank.spread:.0%}; "
        f"a message {message * 1e6:.0f} us, each more at the same time {post * 1e6:.0f} us; "
        f"{learned.num_unique(LARGE):,.0f} different ids in {LARGE} samples"
    )
    if hosts is not None:
        said = forecast(2, LARGE, rank, Link(HOSTS_LINK[1], message, post), learned).samples_per_second
        measured = hosts.median_of("rate")
        share = said / measured
        print(f"2 hosts, {HOSTS_LINK[0]}: forecast {said:,.0f}, measured {measured:,.0f} samples/s ({share:.2f})")
        document["two_hosts"] = {"link": HOSTS_LINK[0], "forecast": said, "measured": measured}
    tables = {
        "10 Gbit/s": (rank, Link(10 * GIGABIT, message, post)),
        "1 Gbit/s": (rank, Link(GIGABIT, message, post)),
        # what would break first if computing cost nearly nothing: no such machine was measured
        "100 Gbit/s, a rank that computes 20 times as fast": (
            rank.faster(20),
            Link(100 * GIGABIT, message / 5, post / 5),
        ),
    }
    for name, (one, link) in tables.items():
        print(f"{name}, {LARGE} samples a rank:")
        forecasts = [forecast(number, LARGE, one, link, learned) for number in RANKS]
        for each in forecasts:
            print(describe(each, forecasts[0]))
        document[name] = [vars(each) for each in forecasts]
    save(options, document)
