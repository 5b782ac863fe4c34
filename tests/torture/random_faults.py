"""Random faults from a seed, a comparison after each; and the command line of what plays them."""

import argparse
import random
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.cluster.site import Site

MEMORY = Path("/dev/shm")
Fault = Callable[[random.Random], str]
Report = Callable[[str], None]


class RandomFaults(ABC):
    """`report` is called with a line for every fault, and with the final figures."""

    def __init__(self, site: Site, seed: int, report: Report) -> None:
        self.site, self.seed, self.report = site, seed, report
        self.done: Counter[str] = Counter()
        self.began = time.monotonic()

    @abstractmethod
    def weights(self) -> dict[Fault, int]:
        """Return the faults with their relative frequencies."""

    @abstractmethod
    def prepare(self, draw: random.Random) -> None:
        """Produce records, and do what else comes before a fault."""

    @abstractmethod
    def compare(self, number: int) -> None:
        """Compare the log with what it must hold, after this fault."""

    @abstractmethod
    def finish(self) -> None:
        """Learn the rest, and compare everything."""

    def run(self, num_kills: int) -> None:
        """Inject faults until `num_kills` processes were killed; then learn the rest and compare."""
        while self.site.num_kills < num_kills:
            self.inject(None)
        self.finish()

    def inject(self, kind: Fault | None) -> None:
        """Inject one fault, random if `kind` is None, and compare.

        It is a function of the seed and of the number of faults before it, as far as timing allows.
        """
        number = self.done.total()
        draw = random.Random(f"{self.seed}-{number}")
        weights = self.weights()
        drawn = draw.choices(list(weights), list(weights.values()))[0]
        kind = kind or drawn
        try:
            self.prepare(draw)
            what = kind(draw)
            self.done[kind.__name__] += 1
            self.compare(number)
        except BaseException:
            self.report(f"fault {number} of seed {self.seed}: {kind.__name__}\n{self.site.output()}")
            raise
        seconds = time.monotonic() - self.began
        self.report(f"fault {number}, {seconds:.0f} s: {what}; {self.site.num_kills} kills")

    def close(self) -> None:
        self.site.close()


def seed_of(options: argparse.Namespace) -> int:
    """Return the seed that was given, or the time."""
    return int(time.time()) if options.seed is None else options.seed


def main(
    parser: argparse.ArgumentParser,
    make: Callable[[Path, int, ProcessPool, argparse.Namespace, Report], RandomFaults],
    *,
    kills: int,
) -> None:
    """Play what `make` returns, in memory; the folder stays if there was a difference, or `--keep` names it."""
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=None, help="seed of records and faults; default: the time")
    parser.add_argument("--keep", type=Path, help="folder in which all files are kept")
    options = parser.parse_args()
    seed = seed_of(options)
    print(f"{parser.prog}: seed {seed}, {options.kills} kills", flush=True)
    began = time.monotonic()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="torture-", dir=MEMORY if MEMORY.is_dir() else None))
    folder.mkdir(exist_ok=True)
    process_pool = ProcessPool()
    torture = make(folder, seed, process_pool, options, lambda line: print(line, flush=True))
    try:
        torture.run(options.kills)
    finally:
        torture.close()
        process_pool.close()
    if options.keep is None:
        shutil.rmtree(folder)
    print(f"{parser.prog}: {time.monotonic() - began:.0f} s, no difference", flush=True)
