"""table.working_set: rows of ten times the memory budget, the rest in spill and base.

DLRM-small, 26 features of Zipf 1.05, dim 16, batch 4096, one torch thread. Each contender is a process; a pass ends
when all evicted rows are on the disk. `--cgroup DIR`, a memory cgroup in which this user may make another, also runs
the small contenders under a limit that leaves no room for the page cache.
"""

# N rows of the base, D dimension
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.kernels.backend import backend
from springtide.kernels.types import RowLayout
from springtide_client.format.records import Head, VersionMeta
from springtide_client.log.base import ModelIdentity, TableSpec
from springtide_client.rows.row_block import RowBlock
from tests.bench.harness.disk_reads import describe, random_read_rates
from tests.bench.harness.machine_limits import HAS_BFLOAT16
from tests.bench.harness.processes import ContenderProcess
from tests.bench.harness.report import Case, alternate, argument_parser, fail, report
from tests.bench.table.memory_cgroup import MIB, MemoryCgroup, uncached_copy
from tests.bench.table.working_set_contender import NUM_FIELDS, OPTIMIZER
from tests.bench.workloads.clicks import SCHEMA
from tests.bench.workloads.small_dlrm import DIM
from tests.support.processes import module_command, our_environment

TIMES, NEEDED = 10, 0.5  # working set / budget; required share of the speed
WARM_BATCHES = 24
CODE_BYTES = 32 * MIB
CONTENDERS = {"all in memory": (False, False), "with lookahead": (True, True), "without": (True, False)}


def make_base(folder: Path, num_rows: int) -> Path:
    """Write a base with every id's first value."""
    ops = backend("cpu")
    numbers = np.arange(num_rows)
    features_N, ids_N = (numbers % NUM_FIELDS).astype(np.uint16), numbers // NUM_FIELDS
    key_hash_N = ops.hash_keys(features_N, ids_N)
    order = np.argsort(key_hash_N)
    features_N, ids_N, key_hash_N = features_N[order], ids_N[order], key_hash_N[order]
    values_ND = ops.initial_values(features_N, ids_N, DIM, 0, 0.05)
    ones_N, zeros_N = np.ones(num_rows, np.int64), np.zeros(num_rows, np.int64)
    states_NS = np.zeros((num_rows, 1), np.float32)
    rows = RowBlock(features_N, ids_N, values_ND, states_NS, ones_N, zeros_N, known_hash=key_hash_N)
    image = BaseImage(
        head=Head(1, 1),
        schema=SCHEMA,
        table=TableImage(
            spec=TableSpec(dim=DIM, state_width=1, seed=0, init_scale=0.05, optimizer=dict(OPTIMIZER)),
            num_rows=num_rows,
            blocks=[rows],
        ),
        model=ModelIdentity(name="dlrm"),
        meta=VersionMeta(),
        dense={},
    )
    return write_base(folder, image)


class Contest:
    """The contenders of one dtype; each learns the same batches in a pass."""

    def __init__(self, folder: Path, base: Path, sizes: dict[str, int], *, bfloat16: bool, budget: int) -> None:
        self.folder, self.base, self.sizes, self.bfloat16, self.budget = folder, base, sizes, bfloat16, budget
        self.children: dict[str, ContenderProcess] = {}
        self.losses: dict[str, list[float]] = {}
        self.warm: dict[str, dict[str, int]] = {}  # counters after the warm-up
        self.last: dict[str, dict[str, Any]] = {}

    def start(self, name: str, base: Path, cgroup: MemoryCgroup | None = None) -> None:
        """Start a contender and warm it up, so that its spill holds rows."""
        small, ahead = CONTENDERS[name.removesuffix(", cgroup")]
        child = ContenderProcess(
            name, module_command("tests.bench.table.working_set_contender"), our_environment(), None
        )
        self.children[name] = child
        if cgroup is not None:
            cgroup.add(child.pid)
        spill = str(self.folder / f"spill {name} {self.bfloat16}")
        settings = {"ids_a_feature": self.sizes["ids_a_feature"], "batch_size": self.sizes["batch_size"]}
        num_bytes = self.budget if small else 0
        child.call(
            "prepare",
            base=str(base),
            spill=spill,
            num_bytes=num_bytes,
            ahead=ahead,
            bfloat16=self.bfloat16,
            **settings,
        )
        self.run(name, self.sizes["warm"])
        self.warm[name] = self.last[name]["counters"]

    def run(self, name: str, num_batches: int) -> float:
        """Run one pass; return samples per second."""
        answer = self.children[name].call("run", num_batches=num_batches)
        self.losses.setdefault(name, []).extend(answer["losses"])
        self.last[name] = answer
        return float(num_batches * self.sizes["batch_size"] / answer["seconds"])

    def run_dense(self) -> float:
        """Return the samples per second of the net alone."""
        num_batches = self.sizes["batches"]
        seconds = self.children["all in memory"].call("dense_only", num_batches=num_batches)["seconds"]
        return float(num_batches * self.sizes["batch_size"] / seconds)

    def contenders(self) -> dict[str, Callable[[], float]]:
        return {name: partial(self.run, name, self.sizes["batches"]) for name in self.children}

    def check(self) -> None:
        """Check that all contenders have bitwise the same losses."""
        expected = self.losses["all in memory"]
        for name, losses in self.losses.items():
            if losses != expected[: len(losses)]:
                fail(f"{name} has other losses than the table in memory")

    def describe(self) -> None:
        """Print what each contender held and fetched."""
        for name, answer in self.last.items():
            since = {key: number - self.warm[name].get(key, 0) for key, number in answer["counters"].items()}
            spill, base = (since[key] / since["keys"] for key in ("recalled_from_spill", "recalled_from_base"))
            parts = f"{spill:.1%} of the keys came from the spill, {base:.1%} from the base"
            print(f"{self.dtype}, {name}: {answer['rss_bytes'] // MIB:,} MiB resident; {parts}")

    @property
    def dtype(self) -> str:
        return "bf16" if self.bfloat16 else "fp32"

    def close(self) -> None:
        with ExitStack() as closing:  # close all, even if one fails
            for child in self.children.values():
                closing.callback(child.close)
                closing.callback(child.call, "close")


def run_in_cgroup(contest: Contest, cgroup: MemoryCgroup) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Run two passes of each small contender; the first only drops the page cache.

    Return the rates, and the limits that the disk sets: one read for each fetched row.
    """
    base = uncached_copy(contest.base, contest.folder / "base of the cgroup")
    names = [f"{name}, cgroup" for name in list(CONTENDERS)[1:]]
    with cgroup.watched():
        for name in names:
            contest.start(name, base, cgroup)
    # room for anonymous memory and code, none for pages of base and spill
    limit = cgroup.peak_bytes + CODE_BYTES
    cgroup.limit(limit)
    print(f"cgroup: {limit // MIB:,} MiB for both, {CODE_BYTES // MIB} of them not for anonymous memory")
    before = {name: contest.warm[name] for name in names}
    rates = alternate({name: partial(contest.run, name, contest.sizes["batches"]) for name in names}, repeats=1)
    cgroup.lift()
    reads = random_read_rates(contest.folder)
    print(describe(reads))
    limits = {}
    for name in names if reads else ():
        since = {key: number - before[name].get(key, 0) for key, number in contest.last[name]["counters"].items()}
        share = (since["recalled_from_spill"] + since["recalled_from_base"]) / since["keys"]
        limits[name] = max(reads.values()) / (share * NUM_FIELDS)
        print(f"{name}: at one read for each fetched row this disk allows {limits[name]:,.0f} samples/s")
    return rates, limits


def measure(contest: Contest, repeats: int, cgroup: MemoryCgroup | None) -> list[Case]:
    for name in CONTENDERS:
        contest.start(name, contest.base)
    rates = alternate(contest.contenders() | {"dense only": contest.run_dense}, repeats=repeats)
    limit, whole = median(rates.pop("dense only")), rates.pop("all in memory")
    limits = dict.fromkeys(rates, limit)
    if cgroup is not None:
        in_cgroup, of_disk = run_in_cgroup(contest, cgroup)
        rates, limits = rates | in_cgroup, limits | of_disk
    contest.check()
    contest.describe()
    needed = {name: NEEDED if name.startswith("with lookahead") else None for name in rates}
    case = partial(Case, unit="samples/s", peers={"all in memory": whole}, contest=False)
    return [
        case(f"{contest.dtype}, {name}", ours=mine, needed=needed[name], limit=limits.get(name))
        for name, mine in rates.items()
    ]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--cgroup", type=Path, help="also under a memory limit, in a cgroup made here")
    options = parser.parse_args()
    sizes = {"ids_a_feature": 200_000, "batch_size": 4096, "batches": 16, "warm": WARM_BATCHES}
    if options.quick:
        sizes |= {"ids_a_feature": 50_000, "batch_size": 512, "batches": 8, "warm": 8}
    repeats = 2 if options.quick else 5
    num_rows = NUM_FIELDS * sizes["ids_a_feature"]
    working_set = num_rows * backend("cpu").slot_bytes(RowLayout(DIM, 1))
    cgroup = MemoryCgroup(options.cgroup) if options.cgroup else None
    if cgroup is None:
        print("not run: the memory limit (--cgroup DIR names a cgroup in which this user may make another)")
    print(f"{num_rows:,} rows, {working_set // MIB:,} MiB; budget {working_set // TIMES // MIB:,} MiB")
    cases: list[Case] = []
    try:
        with tempfile.TemporaryDirectory() as temporary:
            base = make_base(Path(temporary), num_rows)
            for bfloat16 in (True, False) if HAS_BFLOAT16 else (False,):
                contest = Contest(Path(temporary), base, sizes, bfloat16=bfloat16, budget=working_set // TIMES)
                try:
                    cases += measure(contest, repeats, cgroup if bfloat16 == HAS_BFLOAT16 else None)
                finally:
                    contest.close()
    finally:
        if cgroup is not None:
            cgroup.remove()
    report("table.working_set", cases, options, packages=("numpy", "numba", "torch", "rocksdb-py"))
