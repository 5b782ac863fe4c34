"""The longest lookup of a HotModel, while one process writes versions and another compacts."""

import json
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from springtide.app.config.load import load_config
from springtide.app.processes.tuning import yield_to_others
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.write.writer import LogWriter
from springtide_client import HotModel
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.keys import hash_keys
from springtide_client.log.directory import LogDirectory
from tests.bench.harness.report import fail
from tests.bench.harness.thread_times import ProcessorWait
from tests.bench.workloads.row_log import DIM, FEATURE, values_of, write_log
from tests.support.processes import module_command, our_environment

VERSION_SECONDS, VERSIONS_A_BASE = 0.05, 20
CALL_IDS = 64


class Swaps:
    """A HotModel over a log of `num_rows` rows; each version changes a hundredth of them."""

    def __init__(self, folder: Path, num_rows: int) -> None:
        folder.mkdir()
        self.folder, self.num_rows = folder, num_rows
        self.num_swaps = self.num_bases = 0
        self.longest_on_processor = {True: 0.0, False: 0.0}  # by `moving`, in seconds
        write_log(folder, num_rows)
        command = [*module_command("tests.bench.snapshot.swap_latency"), "write", str(folder), str(num_rows)]
        pipe = subprocess.PIPE
        self._writer = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=our_environment())
        self._wait_for_writer()  # wait for the writer's epoch
        self.model = HotModel(folder / "log")

    def __enter__(self) -> "Swaps":
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()
        assert self._writer.stdin is not None
        self._writer.stdin.close()
        self._writer.wait()

    def run(self, seconds: float, *, moving: bool) -> float:
        """Return 1 / the longest call in `seconds`; fails if a row belongs to no version.

        `longest_on_processor` is the longest of all runs without the time that a call was ready to run while other
        threads had the processors: what the model itself lets a call wait for.
        """
        assert self._writer.stdin is not None
        assert self._writer.stdout is not None
        if moving:
            self._writer.stdin.write(f"{seconds}\n")
            self._writer.stdin.flush()
        random = np.random.default_rng(0)
        ids = [random.integers(0, self.num_rows, CALL_IDS) for _ in range(64)]
        expected = [values_of(ids_K) for ids_K in ids]
        longest, version, num_swaps, number = 0.0, self.model.version, 0, 0
        wait = ProcessorWait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            waited = wait.seconds
            start = time.perf_counter()
            rows_KD, status_K = self.model.lookup(FEATURE, ids[number % 64])
            took = time.perf_counter() - start
            longest = max(longest, took)
            if took > self.longest_on_processor[moving]:
                on_processor = took - (wait.seconds - waited)
                self.longest_on_processor[moving] = max(self.longest_on_processor[moving], on_processor)
            # every version adds one whole number to all elements of a row
            added_KD = rows_KD - expected[number % 64]
            if status_K.any() or np.abs(added_KD - added_KD[:, :1]).max() > 1e-3:
                fail("a row that belongs to no version")
            num_swaps += self.model.version != version
            version, number = self.model.version, number + 1
        wait.close()
        if moving:
            told = json.loads(self._writer.stdout.readline())
            self.num_swaps, self.num_bases = self.num_swaps + num_swaps, self.num_bases + told["bases"]
            if not num_swaps:
                fail("no version arrived during the lookups")
        return 1 / longest

    def _wait_for_writer(self) -> None:
        """Wait for the writer's first line."""
        assert self._writer.stdout is not None
        ready, _, _ = select.select([self._writer.stdout], [], [], 60.0)
        if not ready or "ready" not in self._writer.stdout.readline():
            fail("the writer of versions does not start")


def write() -> None:
    """Run the writer process: for each number of seconds on standard input, append versions and request bases."""
    folder, num_rows = Path(sys.argv[2]), int(sys.argv[3])
    config = load_config(folder / "springtide.toml")
    random, number = np.random.default_rng(5), 0
    feature = config.schema.number(FEATURE)
    # drawn before, so that this process takes little from the processors while calls are timed
    versions = [draw(random, num_rows, feature, added) for added in range(8)]
    command = [*module_command("tests.bench.snapshot.swap_latency"), "compact", str(folder)]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as compactor,
        LogWriter.open(config.log, schema=config.schema) as log,
    ):
        assert compactor.stdin is not None
        assert compactor.stdout is not None
        mark = config.schema.fingerprint()
        log.append(VersionMeta(fingerprint=mark), {})
        print("ready", flush=True)
        for line in sys.stdin:
            end, asked = time.monotonic() + float(line) * 0.9, 0
            while time.monotonic() < end:
                number += 1
                log.append_owned(
                    VersionMeta(samples_trained=number, fingerprint=mark), versions[number % len(versions)]
                )
                if number % VERSIONS_A_BASE == 0:
                    log.sync()
                    print("compact", file=compactor.stdin, flush=True)
                    asked += 1
                time.sleep(VERSION_SECONDS)
            print(json.dumps({"bases": sum(int(compactor.stdout.readline()) for _ in range(asked))}), flush=True)
        compactor.stdin.close()


def draw(random: np.random.Generator, num_rows: int, feature: int, added: int) -> Arrays:
    """Return the tensors of a version that changes a hundredth of the rows, sorted as a trainer sorts them."""
    count = max(1, num_rows // 100)
    ids_M = random.choice(num_rows, count, replace=False)
    features_M = np.full(count, feature, np.uint16)
    ids_M = ids_M[np.argsort(hash_keys(features_M, ids_M))]
    return {
        "rows.feature": features_M,
        "rows.id": ids_M,
        "rows.value": values_of(ids_M, DIM) + np.float32(added),
        "rows.state": np.zeros((count, 1), np.float32),
        "rows.count": np.ones(count, np.int64),
        "rows.last_seen": np.full(count, 1000),
    }


def compact() -> None:
    """Run the compactor process at low priority: write a base for each line on standard input."""
    directory = LogDirectory(Path(sys.argv[2]) / "log")
    yield_to_others()
    for _ in sys.stdin:
        print(int(compact_log(directory, window_samples=100) is not None), flush=True)


if __name__ == "__main__":
    {"write": write, "compact": compact}[sys.argv[1]]()
