"""gpu.table: the CUDA backend's lookups, inserts with eviction and training step, at the load of a full table.

Compared with torch's index_select, which needs no hash, and with published figures, marked as such and scaled by
bandwidth: HierarchicalKV on an A100, FBGEMM's static TBE on an H100. Timed are replays of a CUDA graph. Needs an NVIDIA
GPU, and exits with a message without one.
"""

# K keys of a call, C rows of the table, D dimension
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from springtide.kernels.cuda.cupy_device import CupyDevice
from springtide.kernels.cuda.device import Device
from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.cuda.store import KEY_BYTES, WIDTH
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import OptimizerStep, RowLayout, Store
from tests.bench.harness.report import Case, arguments, fail, report, save_lines

HKV = "HierarchicalKV on an A100, published, x 4.8/1.935"
TBE = "FBGEMM TBE on an H100, published, x 1.43"
SCALE = 4.8 / 1.935
# (dim, load): billions of keys per second; at dim 64 and a full table a multiple of them is required
PUBLISHED = {
    "find": {
        (8, 0.5): 2.470,
        (8, 0.75): 2.452,
        (8, 1.0): 2.481,
        (32, 0.5): 2.272,
        (32, 1.0): 2.321,
        (64, 0.5): 1.982,
        (64, 0.75): 1.951,
        (64, 1.0): 2.021,
    },
    "insert_and_evict": {(8, 1.0): 0.511, (32, 1.0): 0.469, (64, 1.0): 0.481},
    "find_or_insert": {(8, 1.0): 0.612, (32, 1.0): 0.572, (64, 1.0): 0.608},
}
BARS = {"find": 1.0, "insert_and_evict": 1.2, "find_or_insert": 1.2}
STEP_MS = {"sgd": 0.67, "adam": 0.95}
SELECT_DIM = 64
SECTOR = 32  # bytes of one memory transaction
OVERFILL = 1.4  # keys inserted per slot, so that nearly every bucket is full


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes of a run."""

    dims: tuple[int, ...]
    loads: tuple[float, ...]
    num_slots: int  # at dim 64 and above; twice as many below, as in HierarchicalKV's measurements
    num_keys: int  # per call
    num_rows: int  # of the training step's table
    step_dim: int
    repeats: int
    copy_bytes: int

    def slots_of(self, dim: int) -> int:
        """Return the number of slots of a table with rows of this width."""
        return self.num_slots * (2 if dim < 64 else 1)


FULL = Size(
    dims=(8, 32, 64),
    loads=(0.5, 0.75, 1.0),
    num_slots=1 << 26,
    num_keys=1 << 20,
    num_rows=16_800_000,
    step_dim=128,
    repeats=21,
    copy_bytes=1 << 32,
)
QUICK = Size(
    dims=(8, 64),
    loads=(0.5, 1.0),
    num_slots=1 << 20,
    num_keys=1 << 17,
    num_rows=1 << 20,
    step_dim=128,
    repeats=3,
    copy_bytes=1 << 28,
)


class Clock(Protocol):
    """Times calls on batches."""

    def seconds(self, work: Callable[[Any], object], batches: Callable[[], Any], repeats: int) -> list[float]:
        """Return the seconds of each call after a warm-up; each has its batch: an array, a tuple of them, or None."""
        ...


class GraphClock:
    """Times replays of a CUDA graph by events: kernels and the gaps between them, without Python's launches."""

    def seconds(self, work: Callable[[Any], object], batches: Callable[[], Any], repeats: int) -> list[float]:
        import torch

        work(batches())  # compiles the kernels, which is not possible during a capture
        torch.cuda.synchronize()
        kept, graph = batches(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work(kept)
        seconds = []
        for turn in range(repeats + 1):
            for to, source in zip(arrays_of(kept), arrays_of(batches()), strict=True):
                to[...] = source
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()  # type: ignore[no-untyped-call]
            graph.replay()  # type: ignore[no-untyped-call]
            end.record()  # type: ignore[no-untyped-call]
            end.synchronize()
            if turn:
                seconds.append(float(begin.elapsed_time(end)) / 1000)
        return seconds


def arrays_of(batch: Any) -> tuple[Any, ...]:
    """Return the arrays of a batch."""
    if batch is None:
        return ()
    return batch if isinstance(batch, tuple) else (batch,)


class Bench:
    """A table filled to some load, and the operations timed on it."""

    def __init__(self, device: Device, clock: Clock, size: Size, *, seed: int = 1) -> None:
        self.device, self.clock, self.size = device, clock, size
        self.ops, self.exact = CudaOps(device, exact=False), CudaOps(device)
        self.rng, self.tick = np.random.default_rng(seed), 1

    def fresh_keys(self, num: int) -> tuple[Any, Any, Any]:
        """Return a batch of unique random keys, which no table holds."""
        return self.keys_of(self.rng.integers(0, 2**62, num))

    def keys_of(self, ids: Any) -> tuple[Any, Any, Any]:
        features, ids = self.device.put(np.zeros(len(ids), np.uint16)), self.device.put(ids)
        return features, ids, self.ops.hash_keys(features, ids)

    def filled(self, load: float, layout: RowLayout) -> Store:
        """Return a store with this load factor; at 1.0 nearly every bucket is full."""
        store = self.ops.allocate(self.size.slots_of(layout.dim), 1024, layout)
        left = int(store.num_slots * (OVERFILL if load == 1 else load))
        while left > 0:
            self.insert(store, self.fresh_keys(min(left, self.size.num_keys)))
            left -= self.size.num_keys
        return store

    def insert(self, store: Store, keys: tuple[Any, Any, Any]) -> Any:
        """Insert keys as a training step does; rows of any earlier call may be evicted."""
        self.tick += 1
        return self.ops.find_or_insert(store, *keys, self.tick, self.tick)

    def resident_keys(self, store: Store) -> Any:
        """Return ids that the store holds, as many as a call has keys, in random order."""
        slots = self.exact.occupied_slots(store, 0, store.num_slots)
        some = self.rng.integers(0, len(slots), self.size.num_keys)
        _, ids = self.exact.keys_of(store, slots)
        return np.unique(np.asarray(ids.get() if hasattr(ids, "get") else ids)[some])

    def check(self, store: Store) -> None:
        """Check that present keys are found and absent ones are not."""
        ids = self.resident_keys(store)
        slots = self.exact.find(store, *self.keys_of(ids))
        _, found = self.exact.keys_of(store, slots)
        if not np.array_equal(host(found), ids):
            fail("a found slot holds another key")
        if (host(self.exact.find(store, *self.fresh_keys(self.size.num_keys))) >= 0).any():
            fail("an absent key was found")
        newcomers = self.fresh_keys(min(self.size.num_keys, store.num_slots // 4))
        placed = self.exact.find_or_insert(store, *newcomers, self.tick + 1, self.tick + 1)
        self.tick += 1
        if not np.array_equal(host(self.exact.find(store, *newcomers)), host(placed.slots_U)):
            fail("an inserted key is not in its slot")

    def rates(self, work: Callable[[Any], object], batches: Callable[[], Any], amount: float) -> list[float]:
        """Return the amount per second of each repeat."""
        return [amount / seconds for seconds in self.clock.seconds(work, batches, self.size.repeats)]


def host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else np.asarray(array)


def copy_rate(bench: Bench) -> float:
    """Return the bytes per second, read and written, of the fastest copy: the limit of every case."""
    num = bench.size.copy_bytes // 8
    source, to = bench.device.filled(num, np.int64, 0), bench.device.empty(num, np.int64)
    sizes = (np.int64(4), np.int64(0), np.uint64(0), np.int64(num), np.int64(0))
    blocks = min(1 << 16, -(-num // bench.device.threads))

    def copy(_: object) -> None:
        bench.device.launch("resize", "move_rows", blocks, (source, *sizes, to))

    return max(bench.rates(copy, lambda: None, 2 * bench.size.copy_bytes))


def table_cases(bench: Bench, dim: int, load: float, bandwidth: float) -> list[Case]:
    """Measure find with and without rows, find_or_insert with half of the keys present, insert_and_evict with none."""
    store, ops, num = bench.filled(load, RowLayout(dim, 0)), bench.ops, bench.size.num_keys
    bench.check(store)
    out = bench.device.empty((num, dim), np.float32)
    inverse = bench.device.put(np.arange(num))
    ids = bench.resident_keys(store)

    def known() -> Any:
        return bench.keys_of(bench.rng.choice(ids, num, replace=len(ids) < num))

    def half() -> Any:
        batch = bench.rng.integers(0, 2**62, num)
        batch[: min(num // 2, len(ids))] = bench.rng.permutation(ids)[: num // 2]
        return bench.keys_of(batch)

    def find_rows(keys: Any) -> None:
        ops.gather(store, ops.find(store, *keys), inverse, out=out)

    def insert_rows(keys: Any) -> None:
        ops.gather(store, bench.insert(store, keys).slots_U, inverse, out=out)

    def evict_rows(keys: Any) -> None:
        placed = bench.insert(store, keys)
        ops.gather(store, placed.victim_slots_V, inverse, out=out)  # before their slots are overwritten
        ops.create(store, placed.slots_U, *keys[:2], 0, 0.01)

    lines = WIDTH + 2 * SECTOR + KEY_BYTES  # digests, an id and a feature, the requested key
    row, score = 4 * dim, 2 * SECTOR
    works = {
        "find": (find_rows, known, lines + 2 * row),
        "find, slots only": (lambda keys: ops.find(store, *keys), known, lines),
        "find_or_insert": (insert_rows, half, lines + score + 2 * row + (8 * WIDTH if load == 1 else 0) // 2),
        "insert_and_evict": (evict_rows, lambda: bench.fresh_keys(num), lines + score + 3 * row + 8 * WIDTH),
    }
    cases = []
    for name, (work, batches, num_bytes) in works.items():
        if name == "insert_and_evict" and load < 1:
            continue
        published = PUBLISHED.get(name, {}).get((dim, load))
        peers = {HKV: [published * SCALE * 1e9]} if published else {}
        cases.append(
            Case(
                f"{name}, dim {dim}, load {load}",
                "keys/s",
                bench.rates(work, batches, num),
                peers,
                needed=BARS.get(name) if published else None,
                limit=bandwidth / num_bytes,
                contest=False,
            )
        )
    return cases


def step_case(bench: Bench, name: str, bandwidth: float) -> Case:
    """Measure a training step: unique keys, slots, rows, and the optimizer's step on given gradients."""
    dim, num, ops = bench.size.step_dim, bench.size.num_keys, bench.ops
    width = OPTIMIZERS[name].state_width(dim)
    num_slots = -(-bench.size.num_rows // WIDTH) * WIDTH * 5 // 4 // WIDTH * WIDTH
    store = ops.allocate(num_slots, 1024, RowLayout(dim, width))
    grads = bench.device.put(bench.rng.standard_normal((num, dim), np.float32))
    times, out = bench.device.put(np.zeros(num, np.int64)), bench.device.empty((num, dim), np.float32)
    features = bench.device.put(np.zeros(num, np.uint16))
    step = OptimizerStep(name, 0.01)

    def zipf() -> Any:
        # inverse of the distribution function of a power law with exponent 1.05 over all rows
        u = bench.rng.random(num)
        top = bench.size.num_rows ** (1 - 1.05)
        return bench.device.put(((1 - u * (1 - top)) ** (1 / (1 - 1.05))).astype(np.int64) * 0x9E3779B1)

    def train(ids: Any) -> None:
        unique = ops.unique(features, ids, times)
        bench.tick += 1
        placed = ops.find_or_insert(store, *unique[:3], bench.tick, bench.tick)
        ops.gather(store, placed.slots_U, unique.inverse_K, out=out)
        order, offsets = ops.group(unique.inverse_K, unique.occurrences_U)
        ops.update(store, placed.slots_U, order, offsets, grads, unique.last_seen_U, step, False, 0, num)

    seen = bench.exact.unique(features, zipf(), times)
    num_unique = len(seen.ids_U)
    # rows read and written out, gradients read, each unique row read and written with its state
    num_bytes = num * 8 * dim + num * 4 * dim + num_unique * 8 * (dim + width)
    rates = bench.rates(train, zipf, 1)
    title = f"training step, {name}, {num:,} look-ups of {num_unique:,} keys, dim {dim}"
    peers = {TBE: [1000 / STEP_MS[name]]}
    return Case(title, "steps/s", rates, peers, needed=1.0, limit=bandwidth / num_bytes, contest=False)


def select_case(bench: Bench, dim: int, bandwidth: float) -> Case:
    """Compare our gather with torch.index_select from as many rows, which needs no hash."""
    import torch

    num, rows = bench.size.num_keys, bench.size.num_slots
    table = torch.zeros((rows, dim), device="cuda")
    out = torch.empty((num, dim), device="cuda")
    store = bench.ops.allocate(rows, 1024, RowLayout(dim, 0))
    inverse = bench.device.put(np.arange(num))

    def positions() -> Any:
        return torch.from_numpy(bench.rng.integers(0, rows, num)).cuda()

    theirs = bench.rates(lambda at: torch.index_select(table, 0, at, out=out), positions, num)
    ours = bench.rates(lambda at: bench.ops.gather(store, at, inverse, out=bench.device.put(out)), positions, num)
    limit = bandwidth / (8 * dim + 16)
    return Case(f"gather, dim {dim}", "rows/s", ours, {"torch index_select": theirs}, limit=limit, contest=False)


def run(bench: Bench) -> list[Case]:
    """Run every case that does not need torch on the GPU."""
    bandwidth, size = copy_rate(bench), bench.size
    cases = [case for dim in size.dims for load in size.loads for case in table_cases(bench, dim, load, bandwidth)]
    return cases + [step_case(bench, name, bandwidth) for name in STEP_MS]


def main() -> None:
    options = arguments(__doc__)
    try:
        device = CupyDevice()
    except ValueError as error:
        sys.exit(f"gpu.table: {error}")
    bench = Bench(device, GraphClock(), QUICK if options.quick else FULL)
    cases = run(bench)
    cases += [select_case(bench, SELECT_DIM, copy_rate(bench))]
    report("gpu.table", cases, options, packages=("torch", "cupy-cuda13x", "numpy"))
    save_lines(options, cases)
