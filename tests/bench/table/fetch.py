"""table.fetch: key to row, dim 64, 524 k keys a call with 1 % misses, out of a full table of 1 M rows.

FBGEMM and torch have no hash: they get row numbers, and no misses.
"""

# C rows of the table, K keys of a call, D dimension
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.bench.harness.machine_limits import ThreadSlices, copy_rate
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import save_array
from tests.bench.harness.report import Case, against_each, alternate, arguments, fail, report, timed
from tests.bench.table.full_store import FullStore, fill_store
from tests.bench.workloads.keys import Int64Array, positions

DIM = 64
MISSES = 100  # one key in so many has no row
# index_select needs no hash, so a fraction of its rate is enough
NEEDED = {"FBGEMM forward": 3.0, "TFRA look-up": 5.0, "torch index_select(out=)": 0.6}
VENV_OF = {"FBGEMM forward": "fbgemm", "TFRA look-up": "tfra"}
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class Fetch:
    """Our fetch: hash, find, gather; NaN for missing rows."""

    def __init__(self, table: FullStore, ids_K: Int64Array, slices: ThreadSlices) -> None:
        self.ops, self.store, self.ids_K, self.slices = table.ops, table.store, ids_K, slices
        self.features_K, self.each_K = np.zeros(len(ids_K), np.uint16), np.arange(len(ids_K))
        self.out_KD = np.empty((len(ids_K), DIM), np.float32)

    def run(self) -> None:
        self.slices.run(self._fetch, len(self.ids_K))

    def _fetch(self, start: int, stop: int) -> None:
        features, ids = self.features_K[start:stop], self.ids_K[start:stop]
        slots = self.ops.find(self.store, features, ids, self.ops.hash_keys(features, ids))
        self.ops.gather(self.store, slots, self.each_K[: stop - start], out=self.out_KD[start:stop])


def check(
    found_KD: Any, values_CD: Float32Array, at_K: Int64Array, missing_K: npt.NDArray[np.bool_], name: str
) -> None:
    """Check the rows bitwise, and that missing rows are NaN."""
    if not np.array_equal(found_KD[~missing_K], values_CD[at_K[~missing_K]]) or not np.isnan(found_KD[missing_K]).all():
        fail(f"the rows of {name}")


def measure(
    table: FullStore,
    values_CD: Float32Array,
    distribution: str,
    num_keys: int,
    peers: Peers,
    folder: Path,
    repeats: int,
) -> list[Case]:
    """Compare with each peer, in the same repeats."""
    slices = ThreadSlices(peers.threads)
    at_K = positions(distribution, num_keys, len(table.ids_C), seed=1)
    missing_K = np.arange(num_keys) % MISSES == 0
    ids_K = np.where(missing_K, np.arange(num_keys), table.ids_C[at_K])
    ours = Fetch(table, ids_K, slices)
    ours.run()
    check(ours.out_KD, values_CD, at_K, missing_K, "ours")

    query = {"keys": save_array(folder, "query", ids_K), "slots": save_array(folder, "slots", at_K)}
    peers.call_all("query_rows", **query)
    nowhere_K = np.zeros(num_keys, np.bool_)
    for name, peer in peers.installed.items():
        peer.call("answer_rows", peer=name, path=str(folder / "answer.npy"))
        check(np.load(folder / "answer.npy"), values_CD, at_K, missing_K if "TFRA" in name else nowhere_K, name)
    weight, slots, out = (torch.from_numpy(array) for array in (values_CD, at_K, np.empty_like(ours.out_KD)))
    torch.set_num_threads(peers.threads)
    select = partial(torch.index_select, weight, 0, slots, out=out)
    select()
    check(out.numpy(), values_CD, at_K, nowhere_K, "torch")

    contenders: dict[str, Callable[[], float]] = {"ours": partial(timed, ours.run, num_keys)}
    contenders |= peers.contenders(num_keys, "run_rows", part="forward")
    contenders["torch index_select(out=)"] = partial(timed, select, num_keys)
    rates = alternate(contenders, repeats=repeats)
    limit = copy_rate(slices) / (2 * 4 * DIM)  # one row read, one written
    what = f"{distribution}, {peers.threads} thread{'s' * (peers.threads > 1)}"
    return against_each(what, "rows/s", rates, NEEDED, limit)


def main() -> None:
    options = arguments(__doc__)
    num_rows, num_keys, repeats = (100_000, 65_536, 2) if options.quick else (1_000_000, 524_288, 5)
    cases: list[Case] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        table = fill_store(num_rows, dim=DIM)
        values_CD = table.ops.gather(table.store, table.slots_C, np.arange(len(table.slots_C)))
        rows = {"keys": save_array(folder, "keys", table.ids_C), "rows": save_array(folder, "rows", values_CD)}
        for threads in (1, 2):
            with Peers(VENV_OF, venvs=options.peers, threads=threads) as peers:
                versions |= peers.versions
                peers.call_all("prepare_rows", **rows, optimizer=None)
                for distribution in ("uniform", "zipf"):
                    cases += measure(table, values_CD, distribution, num_keys, peers, folder, repeats)
    report("table.fetch", cases, options, packages=("numpy", "numba", "torch"), peers=versions)
