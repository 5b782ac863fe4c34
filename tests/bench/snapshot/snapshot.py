"""snapshot: 1 million rows x 64 with optimizer state: a durable image, a delta of 1 %, loading, swapping while serving.

safetensors: `pip install springtide[bench]`. Rates count the bytes of ids, values and states only.
"""

# N rows, D dimension, S width of the optimizer state
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from tests.bench.harness.machine_limits import ThreadSlices, copy_rate
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import save_array
from tests.bench.harness.report import Case, against_each, alternate, arguments, fail, report, timed
from tests.bench.snapshot.row_stores import PEERS, RowFiles, RowSet, SpringtideLog
from tests.bench.snapshot.swap_latency import ModelRows, Rows, ServedRows, Swaps

DELTA_RATIO, SWAP_SECONDS, LOAD_SECONDS = 20.0, 0.005, 0.1
READ_ROWS = 1000
TFRA = "TFRA save"


def open_peers(folder: Path) -> dict[str, RowFiles]:
    """Return the installed contenders."""
    peers: dict[str, RowFiles] = {}
    for name, make in PEERS.items():
        try:
            peers[name] = make(folder / name.split(".")[0])
        except ImportError:
            print(f"not installed: {name}")
    return peers


def check(ours: SpringtideLog, peers: dict[str, RowFiles], rows: RowSet) -> None:
    """Check that every format returns the saved rows bitwise, and a delta the changed ones."""
    at_K = np.random.default_rng(1).permutation(len(rows.ids_N))[:20_000]
    for name, store in {"ours": ours, **peers}.items():
        store.save(rows)
        if not np.array_equal(store.load(rows.ids_N[at_K], at_K).view(np.uint32), rows.values_ND[at_K].view(np.uint32)):
            fail(f"the rows of {name}")
    ours.verify()
    ours.check_delta()


def measure_images(
    ours: SpringtideLog, peers: dict[str, RowFiles], tfra: Peers, rows: RowSet, raw: Callable[[], None], repeats: int
) -> tuple[list[Case], list[float]]:
    """Compare saving with each peer."""
    num_bytes = rows.num_bytes
    contenders = {"ours": partial(timed, partial(ours.save, rows), num_bytes)}
    contenders |= {name: partial(timed, partial(peer.save, rows), num_bytes) for name, peer in peers.items()}
    contenders |= tfra.contenders(num_bytes, "save_rows")
    contenders["raw"] = partial(timed, raw, num_bytes)
    rates = alternate(contenders, repeats=repeats)
    limit, mine = median(rates.pop("raw")), rates.pop("ours")
    case = partial(Case, needed=1.0, limit=limit, contest=False)
    cases = [
        case(f"full image with fsync, against {name}", "bytes/s", mine, {name: found}) for name, found in rates.items()
    ]
    return cases, [num_bytes / rate for rate in mine]


def measure_delta(ours: SpringtideLog, rows: RowSet, full_seconds: list[float], share: float, repeats: int) -> Case:
    """Measure versions of the dirty rows per second, from the table to the fsync, against a full image of ours."""
    num_dirty = int(len(rows.ids_N) * share)
    rates: list[float] = []
    for number in range(repeats + 1):
        ours.touch(num_dirty, seed=number)
        rates.append(timed(ours.append, 1))
    images = {"our full image": [1 / seconds for seconds in full_seconds]}
    return Case(
        f"delta of {100 * share:.0f} % dirty rows, durable", "1/s", rates[1:], images, needed=DELTA_RATIO, contest=False
    )


def measure_loads(
    ours: SpringtideLog, peers: dict[str, RowFiles], tfra: Peers, rows: RowSet, repeats: int
) -> list[Case]:
    """Measure from the files to the first rows, in a process that has none of them in memory."""
    at_K = np.random.default_rng(2).permutation(len(rows.ids_N))[:READ_ROWS]
    ids_K = rows.ids_N[at_K]
    contenders = {"ours": partial(timed, partial(ours.load, ids_K, at_K), 1)}
    contenders |= {name: partial(timed, partial(peer.load, ids_K, at_K), 1) for name, peer in peers.items()}
    contenders |= tfra.contenders(1, "load_rows")
    rates = alternate(contenders, repeats=repeats)
    what, bound = f"load to the first {READ_ROWS} rows", {f"{LOAD_SECONDS} s": [1 / LOAD_SECONDS] * repeats}
    first = Case(what, "1/s", rates["ours"], bound, needed=1.0, contest=False)
    return [first, *against_each(what, "1/s", rates, {})]


def measure_swaps(
    what: str, open_rows: Callable[[Path], Rows], folder: Path, num_rows: int, seconds: float, repeats: int
) -> Case:
    """Measure the longest call, or request, while versions and bases are swapped in."""
    with Swaps(folder, num_rows, open_rows) as swaps:
        rates = alternate(
            {"swapping": partial(swaps.run, seconds, moving=True), "still": partial(swaps.run, seconds, moving=False)},
            repeats=repeats,
        )
        print(f"{what}s during {swaps.num_swaps} swaps, of them {swaps.num_bases} to another base; none failed")
    for name in rates:
        p99, longest, on_processor = zip(*swaps.latencies[name == "swapping"][1:], strict=True)
        print(
            f"{what}s, {name}: p99 {1000 * median(p99):.2f} ms; longest {1000 * median(longest):.2f} ms (worst "
            f"{1000 * max(longest):.2f}), without waiting for a processor that other threads had "
            f"{1000 * median(on_processor):.2f} ms (worst {1000 * max(on_processor):.2f})"
        )
    return Case(
        f"longest {what} while versions are swapped",
        "1/s",
        rates["swapping"],
        {f"{1000 * SWAP_SECONDS:.0f} ms": [1 / SWAP_SECONDS] * repeats},
        needed=1.0,
        limit=median(rates["still"]),
        contest=False,
    )


def main() -> None:
    options = arguments(__doc__)
    num_rows, seconds, repeats = (20_000, 0.5, 2) if options.quick else (1_000_000, 2.0, 5)
    rows = RowSet.draw(num_rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peers = open_peers(folder)
        with (
            SpringtideLog(folder / "ours", rows) as ours,
            Peers({TFRA: "tfra"}, venvs=options.peers, threads=2) as tfra,
        ):
            check(ours, peers, rows)
            files = {"keys": save_array(folder, "keys", rows.ids_N), "rows": save_array(folder, "rows", rows.values_ND)}
            tfra.call_all(
                "prepare_files", **files, states=save_array(folder, "states", rows.states_NS), folder=str(folder)
            )

            def raw() -> None:
                rows.write_raw(folder / "raw")

            cases, full_seconds = measure_images(ours, peers, tfra, rows, raw, repeats)
            cases.append(measure_delta(ours, rows, full_seconds, 0.01, repeats))
            cases += measure_loads(ours, peers, tfra, rows, repeats)
        shutil.rmtree(folder / "ours")
        for what, open_rows in (("call", ModelRows), ("request", ServedRows)):
            cases.append(measure_swaps(what, open_rows, folder / what, num_rows, seconds, repeats))
            shutil.rmtree(folder / what)
    print(f"a copy in memory: {copy_rate(ThreadSlices(1)) / 2e9:.1f} GB/s")
    packages = ("torch", "numpy", "numba", "safetensors")
    report("snapshot", cases, options, packages=packages, peers=tfra.versions)
