"""table.find: where are these keys? 1 M keys a call, in full tables of 1 M and 10 M."""

# C keys of the table, K keys of a call
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from springtide.kernels.cpu.index.buckets import WIDTH, WORDS
from springtide.kernels.types import NO_SLOT
from tests.bench.harness.machine_limits import ThreadSlices, line_rate
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import save_array
from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed
from tests.bench.table.full_store import FullStore, fill_store
from tests.bench.workloads.keys import Int64Array, positions

NEEDED = 4.0  # multiple of the best peer at 1 M uniform keys
MISSES = 100  # one key in so many of the checked ones is absent
VENV_OF = {"pandas": "frames", "polars": "frames", "TorchRec MCH": "fbgemm", "TFRA": "tfra"}


class Find:
    """Our lookup, with hashing."""

    def __init__(self, table: FullStore, ids_K: Int64Array, slices: ThreadSlices) -> None:
        self.ops, self.store, self.ids_K, self.slices = table.ops, table.store, ids_K, slices
        self.features_K, self.slots_K = np.zeros(len(ids_K), np.uint16), np.empty(len(ids_K), np.int64)

    def run(self) -> Int64Array:
        self.slices.run(self._find, len(self.ids_K))
        return self.slots_K

    def _find(self, start: int, stop: int) -> None:
        features, ids = self.features_K[start:stop], self.ids_K[start:stop]
        key_hash = self.ops.hash_keys(features, ids)
        self.slots_K[start:stop] = self.ops.find(self.store, features, ids, key_hash)


def check(
    table: FullStore, ids_K: Int64Array, at_K: Int64Array, peers: Peers, folder: Path, slices: ThreadSlices
) -> None:
    """Check that all contenders find the same, absent keys included."""
    ids_K, expected_K = ids_K.copy(), at_K.copy()
    ids_K[::MISSES], expected_K[::MISSES] = np.arange(len(ids_K[::MISSES])), NO_SLOT
    slots_K = Find(table, ids_K, slices).run()
    if not np.array_equal(slots_K, np.where(expected_K < 0, NO_SLOT, table.slots_C[expected_K])):
        fail("our slots")
    peers.call_all("query_keys", keys=save_array(folder, "query", ids_K))
    for name, peer in peers.installed.items():
        peer.call("answer_keys", peer=name, path=str(folder / "answer.npy"))
        if not np.array_equal(np.load(folder / "answer.npy"), expected_K):
            fail(f"the answer of {name}")


def look_up_all(slot_of: dict[int, int], keys_K: list[int]) -> list[int]:
    return list(map(slot_of.__getitem__, keys_K))


def measure(
    table: FullStore,
    slot_of: dict[int, int],
    distribution: str,
    num_keys: int,
    peers: Peers,
    folder: Path,
    repeats: int,
) -> Case:
    """Compare with each peer on the same keys, all present."""
    threads = peers.threads
    slices = ThreadSlices(threads)
    at_K = positions(distribution, num_keys, len(table.ids_C), seed=1)
    ids_K = table.ids_C[at_K]
    check(table, ids_K, at_K, peers, folder, slices)
    peers.call_all("query_keys", keys=save_array(folder, "query", ids_K))
    contenders: dict[str, Callable[[], float]] = {"ours": partial(timed, Find(table, ids_K, slices).run, num_keys)}
    contenders |= peers.contenders(num_keys, "run_keys")
    if threads == 1:  # a dict holds the GIL, so one thread only
        keys_K = ids_K.tolist()
        if look_up_all(slot_of, keys_K) != at_K.tolist():
            fail("the answer of dict")
        contenders["dict"] = partial(timed, partial(look_up_all, slot_of, keys_K), num_keys)
    rates = alternate(contenders, repeats=repeats)
    mine = rates.pop("ours")
    # one cache line per key, all addresses known
    lines_of_bucket = WORDS // 8
    limit = line_rate(
        slices, table.slots_C[at_K] // WIDTH * lines_of_bucket, table.store.num_slots // WIDTH * lines_of_bucket
    )
    size = table.store.num_slots
    needed = NEEDED if (size, distribution) == (1_000_000, "uniform") else None
    name = f"{size:,} keys, {distribution}, {threads} thread{'s' * (threads > 1)}"
    return Case(name, "keys/s", mine, rates, needed=needed, limit=limit)


def main() -> None:
    options = arguments(__doc__)
    sizes, num_keys, repeats = ((100_000,), 200_000, 2) if options.quick else ((1_000_000, 10_000_000), 1_000_000, 5)
    cases: list[Case] = []
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for size in sizes:
            table = fill_store(size, dim=1)
            keys = save_array(folder, "keys", table.ids_C)
            slot_of = {key: at for at, key in enumerate(table.ids_C.tolist())}
            for threads in (1, 2):
                with Peers(VENV_OF, venvs=options.peers, threads=threads) as peers:
                    versions |= peers.versions
                    peers.call_all("prepare_keys", keys=keys)
                    cases += [
                        measure(table, slot_of, distribution, num_keys, peers, folder, repeats)
                        for distribution in ("uniform", "zipf")
                    ]
    report("table.find", cases, options, packages=("numpy", "numba"), peers=versions)
