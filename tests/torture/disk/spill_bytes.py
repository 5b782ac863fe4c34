"""`python -m tests.torture.disk.spill_bytes`: a DynamicEmbedding at full speed, over a spill with a small limit.

Most ids are new, a tenth come back. The folder may exceed `spill_bytes` by a quarter for moments only; it is measured
all the time, by another thread.
"""

import argparse
import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from springtide import DynamicEmbedding
from springtide.embeddings.tiers.disk_space import folder_bytes
from springtide_client.rows.initial_values import initial_values
from springtide_client.system.settings import parse_size

DIM, SCALE, BATCH = 16, 0.1, 4096
MEASURE_SECONDS = 0.005


class Outcome(NamedTuple):
    peak: int  # bytes of the folder
    num_batches: int
    seconds: float
    counters: dict[str, int]
    num_reported: int  # ids reported by on_evict
    num_rows: int  # that the object has in the end


def first_values(ids: torch.Tensor) -> torch.Tensor:
    """What rows are created with; each step then subtracts 1."""
    features = np.zeros(len(ids), np.uint16)
    return torch.from_numpy(initial_values(features, ids.numpy(), dim=DIM, seed=0, scale=SCALE))


def run(folder: Path, spill_bytes: str, goes_on: Callable[[int], bool], *, batch: int = BATCH) -> Outcome:
    """Train while `goes_on` says so of the number of batches. AssertionError for a wrong row."""
    emb = DynamicEmbedding(
        DIM,
        4 * batch,
        optimizer={"name": "sgd", "lr": 1.0},
        init_scale=SCALE,
        spill=folder / "spill",
        spill_bytes=spill_bytes,
    )
    reported = itertools.count()
    emb.on_evict(lambda ids, reason: [next(reported) for _ in range(len(ids))])
    peak, done = [0], threading.Event()

    def measure() -> None:
        while not done.wait(MEASURE_SECONDS):
            peak[0] = max(peak[0], folder_bytes(folder))

    thread = threading.Thread(target=measure)
    thread.start()
    began, number = time.monotonic(), 0
    try:
        while goes_on(number):
            fresh = torch.arange(number * batch, (number + 1) * batch)
            again = torch.randint(0, max(1, number * batch), (batch // 10,))
            rows = emb(torch.cat([fresh, again]))
            steps = first_values(torch.cat([fresh, again])) - rows.detach()
            assert (steps[:batch] == 0).all(), "a new id has another row's values"
            assert ((steps - steps.round()).abs() < 1e-3).all(), "a damaged row"
            rows[: batch + 1].sum().backward()
            number += 1
            peak[0] = max(peak[0], folder_bytes(folder))
        seconds = time.monotonic() - began
    finally:
        done.set()
        thread.join()
    num_rows = len(emb.export())
    counters = emb.counters()
    emb.close()
    assert not (folder / "spill").exists()
    return Outcome(peak[0], number, seconds, counters, next(reported), num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="spill_bytes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--spill-bytes", default="64MiB")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="spill-bytes-") as name:
        outcome = run(Path(name), options.spill_bytes, lambda _: time.monotonic() < end)
    limit = parse_size(options.spill_bytes)
    num_ids, counters = outcome.num_batches * (BATCH + BATCH // 10), outcome.counters
    print(
        f"{num_ids / outcome.seconds:,.0f} ids/s for {outcome.seconds:.0f} s: at most {outcome.peak / limit:.2f} of "
        f"{options.spill_bytes}; {counters['spilled']:,} rows spilled, {counters['created']:,} created, "
        f"{outcome.num_reported:,} reported as expired, {outcome.num_rows:,} left"
    )
    assert outcome.peak <= 1.25 * limit


if __name__ == "__main__":
    main()
