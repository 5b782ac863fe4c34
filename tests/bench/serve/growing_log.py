"""Append a version to a log every SECONDS, without a trainer: `growing_log FOLDER SECONDS NUM_ROWS`.

Prints each version: number, bytes, and the monotonic ns at which readers can see it.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from springtide.app.config.load import load_config
from springtide.app.training.bootstrap import load_state
from springtide.app.version_log.write.segment_writer import SegmentWriter
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import HEADER
from tests.bench.workloads.row_log import DIM, FEATURE
from tests.support.processes import module_command, our_environment

NUM_IDS = 1_000_000


@contextmanager
def growing_log(folder: Path, seconds: float, num_rows: int, *, stdout: int) -> Iterator["subprocess.Popen[str]"]:
    """Run this module over the log of `write_log` within the context."""
    command = module_command("tests.bench.serve.growing_log", str(folder), str(seconds), str(num_rows))
    process = subprocess.Popen(command, env=our_environment(), stdout=stdout, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> None:
    folder, seconds, num_rows = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    config = load_config(folder / "springtide.toml")
    random = np.random.default_rng(0)
    written = SegmentWriter.write
    sizes: list[int] = []

    def write(self: SegmentWriter, frame: bytes) -> None:
        sizes.append(len(frame))
        written(self, frame)

    SegmentWriter.write = write  # type: ignore[method-assign]
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        dense = {f"dense.{name}": array for name, array in state.learner.dense_arrays().items()}
        feature, due = config.schema.number(FEATURE), time.monotonic()
        while True:
            ids_N = np.unique(random.integers(0, NUM_IDS, num_rows))
            n, now_ms = len(ids_N), time.time_ns() // 1_000_000
            rows = {
                "rows.feature": np.full(n, feature, np.uint16),
                "rows.id": ids_N,
                "rows.value": random.normal(size=(n, DIM)).astype(np.float32),
                "rows.state": np.ones((n, 1), np.float32),
                "rows.count": np.ones(n, np.int64),
                "rows.last_seen": np.full(n, now_ms),
            }
            meta = state.meta(created_ms=now_ms)
            version = log.append(meta, rows | dense)
            while log.published != version:
                time.sleep(0.0002)
            print(version.number, sizes[-1] - HEADER.size, time.monotonic_ns(), flush=True)
            due += seconds
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
