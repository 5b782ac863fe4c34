"""table.churn: 100 batches with 5 % new keys at fixed capacity: speed and hit rate of eviction.

Ours is lookup and gather of rows of dim 64; with LFU also an update, because only learned ids count. TFRA holds rows
and evicts when a quarter too large; MCH and the OrderedDict return row numbers only.
`--data PATH` names the folder with simulated-completejourney.parquet, for the hit rates on its items.
"""

# C capacity, K keys of a batch, D dimension
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from springtide.embeddings.config import FeaturePolicy, TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide_client.rows.initial_values import initial_values
from tests.bench.harness.machine_limits import ThreadSlices, line_rate
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import save_array
from tests.bench.harness.report import DATA, Case, against_each, alternate, argument_parser, fail, report, timed
from tests.bench.table.hit_rates import EXPONENTS, MAX_LOSS, SHARES, compare, item_stream, zipf_stream
from tests.bench.workloads.keys import Int64Array, churn_stream

DIM, THREADS, NEW_SHARE = 64, 2, 0.05
# MCH admits new ids with every batch, as all others here, or with every tenth, which is cheaper but delays new ids
INTERVALS = {"TorchRec MCH": 1, "TorchRec MCH, every 10th batch": 10}
VENV_OF = {"TFRA": "tfra", "TorchRec MCH": "fbgemm"}
NEEDED = {"TFRA": 3.0, "TorchRec MCH": 8.0}
BATCH_MS = 1000  # event time between two batches
KINDS: dict[str, dict[str, Any]] = {
    "lru": {},
    "lfu": {"eviction": "lfu", "optimizer": {"name": "sgd", "lr": 0.0}},
    "lru, admission": {"admission": {"min_count": 2}},
    "lru, expiry": {"features": {0: FeaturePolicy(ttl_seconds=20.0)}},
}


class Stream:
    """A long stream of ids, read in passes of 100 batches."""

    def __init__(self, folder: Path, *, capacity: int, batch_size: int, num_batches: int, num_passes: int) -> None:
        self.batch_size, self.pass_keys = batch_size, batch_size * num_batches
        self.ids = churn_stream(
            self.pass_keys * num_passes, population=4 * capacity, new_share=NEW_SHARE, seed=0, first_new=0
        )
        self.path = save_array(folder, "stream", self.ids)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the range of keys of a pass; passes repeat."""
        number %= len(self.ids) // self.pass_keys
        return number * self.pass_keys, (number + 1) * self.pass_keys

    def batches(self, number: int) -> list[Int64Array]:
        start, stop = self.bounds(number)
        return [self.ids[at : at + self.batch_size] for at in range(start, stop, self.batch_size)]


class Ours:
    """Our table; each call learns the next pass."""

    def __init__(self, kind: str, capacity: int, stream: Stream) -> None:
        config = TableConfig(dim=DIM, num_threads=THREADS, **KINDS[kind])
        rows = Capacity.of_rows(capacity, num_evicted_dirty=1)
        self.table = EmbeddingTable(config, seed=0, capacity=rows, tracked=False)
        self.stream, self.learns, self.passes, self.event_ms = stream, kind == "lfu", 0, 0
        self.num_samples = 0
        self.features_K = np.zeros(stream.batch_size, np.uint16)
        self.grads_KD = np.zeros((stream.batch_size, DIM), np.float32)

    def run(self) -> float:
        batches, self.passes = self.stream.batches(self.passes), self.passes + 1
        return timed(lambda: [self.step(ids_K) for ids_K in batches], self.stream.pass_keys)

    def step(self, ids_K: Int64Array) -> Any:
        self.event_ms, self.num_samples = self.event_ms + BATCH_MS, self.num_samples + len(ids_K)
        self.table.advance(self.event_ms, self.num_samples)
        lookup = self.table.lookup(self.features_K, ids_K, np.full(len(ids_K), self.event_ms))
        rows_KD = self.table.gather(lookup)
        if self.learns:
            self.table.update(lookup, self.grads_KD)
        else:
            lookup.release()
        return rows_KD


def check(kind: str, ours: Ours, capacity: int) -> None:
    """Check that every key has its own row (or, with admission, the shared one), and the capacity is kept."""
    config = ours.table.config
    for ids_K in ours.stream.batches(0)[:10]:
        rows_KD = ours.step(ids_K)
        own_KD = initial_values(ours.features_K, ids_K, dim=DIM, seed=0, scale=config.init_scale)
        is_own_K = (rows_KD == own_KD).all(axis=1)
        if kind == "lru, admission":
            others = rows_KD[~is_own_K]
            is_own_K[:] = len(others) == 0 or bool((others == others[0]).all())
        if not is_own_K.all():
            fail(f"{kind}: {np.count_nonzero(~is_own_K)} keys of a batch have another key's row")
    if ours.table.rows_by_tier()["device"] > capacity + capacity // 16:
        fail(f"{kind}: {ours.table.rows_by_tier()['device']} rows at a capacity of {capacity}")
    ours.table.check_integrity()


class DictLru:
    """Ids to slots by an OrderedDict, as it is often written, with the same admission and expiry."""

    def __init__(self, kind: str, capacity: int, stream: Stream) -> None:
        self.slots: OrderedDict[int, int] = OrderedDict()
        self.seen: dict[int, int] = {}  # last event time or count, by id
        self.kind, self.capacity, self.stream, self.passes, self.event_ms = kind, capacity, stream, 0, 0

    def run(self) -> float:
        batches, self.passes = self.stream.batches(self.passes), self.passes + 1
        lists = [ids_K.tolist() for ids_K in batches]
        return timed(lambda: [self.step(ids) for ids in lists], self.stream.pass_keys)

    def step(self, ids: list[int]) -> list[int]:
        slots, seen, admission, expiry = self.slots, self.seen, "admission" in self.kind, "expiry" in self.kind
        self.event_ms += BATCH_MS
        found = []
        for id_ in ids:
            slot = slots.get(id_)
            if slot is not None:
                slots.move_to_end(id_)
            elif admission and seen.setdefault(id_, 0) < 1:
                seen[id_] += 1
                slot = -1
            else:
                slot = slots.popitem(last=False)[1] if len(slots) == self.capacity else len(slots)
                slots[id_] = slot
            if expiry:
                seen[id_] = self.event_ms
            found.append(slot)
        if expiry:
            horizon = self.event_ms - int(1000 * KINDS["lru, expiry"]["features"][0].ttl_seconds)
            while slots and seen[next(iter(slots))] < horizon:
                id_, _ = slots.popitem(last=False)
                del seen[id_]
        return found


def measure(kind: str, capacity: int, stream: Stream, peers: Peers, repeats: int) -> list[Case]:
    """Compare with each peer, in the same repeats."""
    check(kind, Ours(kind, capacity, stream), capacity)
    ours = Ours(kind, capacity, stream)
    contenders: dict[str, Callable[[], float]] = {"ours": ours.run}
    if kind in ("lru", "lfu"):
        if "TFRA" in peers.installed:
            peers.installed["TFRA"].call("prepare_churn", capacity=capacity, policy=kind, dim=DIM)
        if "TorchRec MCH" in peers.installed:
            for name, interval in INTERVALS.items():
                mch = peers.installed["TorchRec MCH"]
                mch.call("prepare_churn", capacity=capacity, policy=kind, interval=interval)
                contenders[name] = partial(run_peer, mch, name, stream, [0], interval=interval)
        if "TFRA" in peers.installed:
            contenders["TFRA"] = partial(run_peer, peers.installed["TFRA"], "TFRA", stream, [0])
    if kind != "lfu":
        contenders["OrderedDict"] = DictLru(kind, capacity, stream).run
    rates = alternate(contenders, repeats=repeats)
    counters = ours.table.counters()
    ours.table.check_integrity()
    ours.table.close()
    print(f"{kind}: {100 * counters['hits_device'] / counters['keys']:.1f} % of the keys had their row in memory")
    lines_K = np.random.default_rng(0).integers(0, capacity // 16 * 5, 1_000_000)
    limit = line_rate(ThreadSlices(THREADS), lines_K, capacity // 16 * 5) / 2
    return against_each(kind, "keys/s", rates, NEEDED, limit)


def run_peer(peer: Any, name: str, stream: Stream, passes: list[int], **settings: int) -> float:
    start, stop = stream.bounds(passes[0])
    passes[0] += 1
    arguments = {"stream": stream.path, "start": start, "stop": stop, "batch_size": stream.batch_size}
    seconds = peer.call("run_churn", peer=name, **arguments, **settings)["seconds"]
    return float((stop - start) / seconds)


def hit_rates(items: Path | None, *, quick: bool) -> list[Case]:
    """Compare hit rates with exact LRU and LFU; at most one point may be lost."""
    num_keys, population = (50_000, 10_000) if quick else (400_000, 50_000)
    streams: dict[str, Any] = {
        f"Zipf {exponent}": zipf_stream(exponent, num_keys, population) for exponent in EXPONENTS
    }
    if items is not None:
        streams["items of simulated-completejourney"] = item_stream(items)[: num_keys if quick else None]
    cases = []
    for name, ids in streams.items():
        for policy in ("lru", "lfu"):
            for share in SHARES:
                rate = compare(name, ids, policy, share)
                what = f"hit rate, {policy}, {name}, room for {100 * share:g} % = {rate.capacity:,}"
                needed = (rate.exact - MAX_LOSS) / rate.exact
                peers = {f"exact {policy}": [100 * rate.exact]}
                cases.append(Case(what, "% of keys", [100 * rate.table], peers, needed=needed))
    return cases


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="where simulated-completejourney.parquet is")
    options = parser.parse_args()
    capacity, batch_size, num_batches, repeats = (16_384, 4_096, 10, 2) if options.quick else (262_144, 16_384, 100, 5)
    items: Path | None = options.data / "simulated-completejourney.parquet"
    if items is not None and not items.exists():
        print(f"skipped: no hit rates on items, {items} is not there")
        items = None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stream = Stream(
            folder, capacity=capacity, batch_size=batch_size, num_batches=num_batches, num_passes=repeats + 1
        )
        with Peers(VENV_OF, venvs=options.peers, threads=THREADS) as peers:
            cases = [case for kind in KINDS for case in measure(kind, capacity, stream, peers, repeats)]
            versions = peers.versions
        cases += hit_rates(items, quick=options.quick)
    report("table.churn", cases, options, packages=("numpy", "numba", "torch"), peers=versions)
