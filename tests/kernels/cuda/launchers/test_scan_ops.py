"""The CUDA backend's sweeps and changes of size, against the oracle and the rows that were written."""

from typing import Any

import numpy as np
import pytest

from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.cuda.store import WIDTH
from springtide.kernels.types import NO_SLOT, RowLayout
from tests.kernels.oracle import Index, Key, mixed
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of, host

LAYOUT = RowLayout(3, 4, "bfloat16")


class Filled:
    """A store with keys that the oracle's index has too, priorities and times of their own, and told rows."""

    def __init__(self, device: Any, num_slots: int, keys: list[Key], num_overflow: int = 40) -> None:
        self.ops, self.put = CudaOps(device), device.put
        self.store = self.ops.allocate(num_slots, num_overflow, LAYOUT)
        self.oracle = Index(num_slots, WIDTH, num_overflow)
        rng, self.last_seen = np.random.default_rng(len(keys)), {}
        for tick, part in enumerate((keys[::2], keys[1::2]), 1):
            self.ops.find_or_insert(self.store, *self.arrays(part), tick, 1)
            self.oracle.find_or_insert(part, tick, 1)
        slots, priorities = self.find(keys), rng.integers(-2, 2, len(keys))
        self.ops.set_priorities(self.store, self.put(slots), self.put(priorities))
        for key, priority in zip(keys, priorities.tolist(), strict=True):
            self.oracle.set_priority(key, priority)
        self.here = [key for key, slot in zip(keys, slots, strict=True) if slot != NO_SLOT]
        slots = slots[slots != NO_SLOT]
        columns = self.ops.read(self.store, self.put(slots))
        last_seen = rng.integers(-5, 5, len(slots))
        self.last_seen = dict(zip(self.here, last_seen.tolist(), strict=True))
        values = np.array([[key[1], key[0], 1] for key in self.here], np.float32)
        columns = columns._replace(values_ND=self.put(values), last_seen_N=self.put(last_seen))
        self.ops.scatter(self.store, self.put(slots), columns)

    def arrays(self, keys: list[Key]) -> tuple[Any, Any, Any]:
        features, ids = np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)
        return self.put(features), self.put(ids), self.put(np.array([mixed(key) for key in keys], np.uint64))

    def find(self, keys: list[Key]) -> Any:
        return host(self.ops.find(self.store, *self.arrays(keys)))

    def keys_of(self, slots: Any) -> list[Key]:
        features, ids = (host(array) for array in self.ops.keys_of(self.store, slots))
        return list(zip(features.tolist(), ids.tolist(), strict=True))

    def check_rows(self, keys: list[Key]) -> None:
        columns = self.ops.read(self.store, self.put(self.find(keys)))
        assert host(columns.values_ND).tolist() == [[key[1], key[0], 1] for key in keys]
        assert host(columns.last_seen_N).tolist() == [self.last_seen[key] for key in keys]


KEYS: list[Key] = [(f, i) for f in (0, 2, 5) for i in range(110)]  # ids that bfloat16 has


@pytest.mark.parametrize("name", DEVICES)
def test_sweeps_equal_the_oracle(name: str) -> None:
    filled = Filled(device_of(name, seed=3), 2 * WIDTH, KEYS)
    ops, store, oracle = filled.ops, filled.store, filled.oracle
    assert set(filled.here) == oracle.keys()
    assert oracle.overflow
    num_rows = store.num_slots + store.num_overflow
    standing = host(ops.occupied_slots(store, 0, num_rows))
    assert set(filled.keys_of(filled.put(standing))) == oracle.keys()
    assert host(ops.occupied_slots(store, 100, 280)).tolist() == [slot for slot in standing if 100 <= slot < 280]
    weak = {key for key, (_, tick) in oracle.overflow.items() if tick < 2}
    assert set(filled.keys_of(ops.overflow_slots(store, 2))) == weak
    for feature, num, protect_from in ((-1, 1, 3), (-1, 50, 3), (2, 30, 3), (0, 9, 2), (-1, 10**6, 2), (7, 5, 9)):
        expected = oracle.lowest(feature, num, protect_from)
        assert filled.keys_of(ops.lowest_scores(store, feature, num, protect_from)) == expected
    horizons = np.array([1, 9, -2], np.int64)
    dead = [key for key in filled.here if key[0] < 3 and filled.last_seen[key] < horizons[key[0]]]
    expired = host(ops.expired_slots(store, 0, num_rows, filled.put(horizons)))
    assert sorted(filled.keys_of(filled.put(expired))) == sorted(dead)
    assert expired.tolist() == sorted(expired)
    slots, features = filled.find(filled.here), filled.put(np.array([f for f, _ in filled.here], np.uint16))
    slots[3] = NO_SLOT
    positions = host(ops.find_expired(store, filled.put(slots), features, filled.put(horizons)))
    assert [filled.here[n] for n in positions] == [key for key in dead if key != filled.here[3]]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("num_slots", "others"), [(3 * WIDTH, 5 * WIDTH), (5 * WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)])
def test_a_store_of_another_size_has_the_same_rows(name: str, num_slots: int, others: int) -> None:
    filled = Filled(device_of(name, seed=4), num_slots, KEYS)
    ops, store = filled.ops, filled.store
    moved, crowded = filled.oracle.moved(others)
    slots = ops.rows_without_room(store, others)
    assert sorted(filled.keys_of(slots)) == sorted(crowded)
    assert host(slots).tolist() == sorted(host(slots).tolist())
    half = (
        host(ops.rows_without_room(store, others, 0, WIDTH)).tolist()
        + host(ops.rows_without_room(store, others, WIDTH)).tolist()
    )
    assert sorted(half) == host(slots).tolist()
    if crowded:
        with pytest.raises(ValueError, match=f"{len(crowded)} rows would find no room"):
            ops.resize(store, others)
        ops.erase(store, slots)
    store = filled.store = ops.resize(store, others)
    assert store.num_slots == others
    left = [key for key in filled.here if key not in crowded]
    assert set(left) == moved.keys()
    filled.check_rows(left)
    found = filled.find(left)
    homes = [range_of(mixed(key), others // WIDTH) for key in left]
    assert all(slot >= others or slot // WIDTH == home for slot, home in zip(found, homes, strict=True))
    filled.check_rows(left)


def range_of(word: int, num: int) -> int:
    return (word >> 32) * num >> 32


@pytest.mark.parametrize("name", DEVICES)
def test_the_overflow_area_grows_and_is_reset_when_it_is_empty(name: str) -> None:
    filled = Filled(device_of(name), WIDTH, KEYS[:150], num_overflow=12)
    ops, store = filled.ops, filled.store
    assert len(filled.here) == WIDTH + 12
    store = ops.grow_overflow(store, 30)
    filled.check_rows(filled.here)
    ops.find_or_insert(store, *filled.arrays(KEYS[:150]), 2, 1)
    assert (filled.find(KEYS[:150]) >= 0).all()
    with pytest.raises(ValueError, match="erase or move them first"):
        ops.reset_overflow(store, 5)
    ops.erase(store, ops.overflow_slots(store, 3))
    store = ops.reset_overflow(store, 5)
    assert store.num_overflow == 5
    in_buckets = [key for key in filled.here if key not in filled.oracle.overflow]
    filled.check_rows(in_buckets)
