"""A store takes another size in place: the oracle's keys with their scores, every row with all its columns."""

import itertools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.cpu.store.store import arrays_of
from springtide.kernels.types import NO_SLOT, RowColumns, RowLayout, Store
from tests.kernels.oracle import Index, Key
from tests.kernels.small_batch import OPS, found, insert, keys_of
from tests.support.processes import module_command, our_environment

NUM_OVERFLOW = 8
MANY_KEYS = st.tuples(st.sampled_from([0, 1, 65535]), st.integers(-3, 200) | st.sampled_from([2**63 - 1, -(2**63)]))
LAYOUTS = st.sampled_from(
    [RowLayout(3, 1), RowLayout(1, 0), RowLayout(5, 11, "bfloat16"), RowLayout(16, 16), RowLayout(2, 4)]
)
SIZES = st.integers(1, 12).map(lambda num_buckets: num_buckets * WIDTH)
STEPS = st.tuples(
    st.lists(MANY_KEYS, unique=True, max_size=80), st.integers(0, 2), st.lists(MANY_KEYS, max_size=20), SIZES
)
STATUS = Path("/proc/self/status")


def rows_of(keys: list[Key], layout: RowLayout, salt: int) -> RowColumns:
    """Rows that can be told from each other; whole numbers below 2**8, so that bfloat16 has them too."""
    seeds = np.array([hash((key, salt)) & 0xFFFF for key in keys], np.int64)
    values = (seeds[:, None] * np.arange(1, layout.dim + 1)) % 251
    states = (seeds[:, None] * np.arange(3, layout.state_width + 3)) % 241
    return RowColumns(
        values.astype(np.float32), states.astype(np.float32), seeds, -seeds, np.where(seeds % 2, 3, 6).astype(np.int64)
    )


@settings(deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=6), SIZES, LAYOUTS)
def test_a_resized_store_equals_the_oracle(steps: list[Any], num_slots: int, layout: RowLayout) -> None:
    store, oracle = OPS.allocate(num_slots, NUM_OVERFLOW, layout), Index(num_slots, WIDTH, NUM_OVERFLOW)
    salts: dict[Key, int] = {}
    for tick, (keys, num_held, favourites, size) in enumerate(steps, 1):
        protect_from = max(1, tick - num_held)
        placed = insert(store, keys, tick, protect_from)
        assert [keys[u] for u in placed.new_N] == oracle.find_or_insert(keys, tick, protect_from)[0]
        for n, key in enumerate(favourites):
            OPS.set_priorities(store, found(store, [key]), np.array([n % 5 - 2]))
            oracle.set_priority(key, n % 5 - 2)
        here = placed.slots_U != NO_SLOT
        homed = list(itertools.compress(keys, here))
        OPS.scatter(store, placed.slots_U[here], rows_of(homed, layout, tick))
        salts.update(dict.fromkeys(homed, tick))
        oracle, crowded = oracle.moved(size)
        slots = OPS.rows_without_room(store, size)
        assert set(keys_of(store, slots)) == set(crowded)
        pieces = [OPS.rows_without_room(store, size, start, start + WIDTH) for start in range(0, size, WIDTH)]
        assert sorted(np.concatenate(pieces).tolist()) == slots.tolist()
        if crowded:
            with pytest.raises(ValueError, match="find no room"):
                OPS.resize(store, size)
        OPS.erase(store, slots)
        store = OPS.resize(store, size)
        assert store.num_slots == size
        check(store, oracle, layout, salts)
    for key in list(oracle.keys()):
        OPS.erase(store, found(store, [key]))
    assert len(OPS.occupied_slots(store, 0, store.num_slots + NUM_OVERFLOW)) == 0
    assert not arrays_of(store).buckets.words.reshape(-1, 40)[:, 6].any()  # nobody is looked for elsewhere any more


def check(store: Store, oracle: Index, layout: RowLayout, salts: dict[Key, int]) -> None:
    """Keys, places, scores and rows."""
    num_rows = store.num_slots + store.num_overflow
    standing = OPS.occupied_slots(store, 0, num_rows)
    here = keys_of(store, standing)
    assert len(set(here)) == len(here)
    assert set(here) == oracle.keys()
    np.testing.assert_array_equal(found(store, here), standing)
    assert keys_of(store, OPS.lowest_scores(store, -1, num_rows, 2**40)) == oracle.lowest(-1, num_rows, 2**40)
    assert set(keys_of(store, OPS.overflow_slots(store, 2**40))) == set(oracle.overflow)
    rows = OPS.read(store, standing)
    for n, key in enumerate(here):
        for ours, expected in zip(rows, rows_of([key], layout, salts[key]), strict=True):
            np.testing.assert_array_equal(ours[n], expected[0])
    empty = np.setdiff1d(np.arange(num_rows), standing)
    assert not OPS.read(store, empty).flags_N.any()


def filled(num_slots: int, layout: RowLayout) -> tuple[Store, Any, Any]:
    """A store at load 0.8, all its memory written to; the ids and their values."""
    store, ids = OPS.allocate(num_slots, WIDTH, layout), np.arange(num_slots * 4 // 5)
    features = np.zeros(len(ids), np.uint16)
    placed = OPS.find_or_insert(store, features, ids, OPS.hash_keys(features, ids), 1, 2)
    OPS.create(store, placed.slots_U, features, ids, 0, 0.1)
    arrays_of(store).values_CD[store.num_slots :] = 0
    kept = OPS.find(store, features, ids, OPS.hash_keys(features, ids)) != NO_SLOT
    ids, features = ids[kept], features[kept]
    return store, ids, OPS.initial_values(features, ids, layout.dim, 0, 0.1)


def holds(store: Store, ids: Any, values: Any) -> bool:
    features = np.zeros(len(ids), np.uint16)
    slots = OPS.find(store, features, ids, OPS.hash_keys(features, ids))
    return bool((slots != NO_SLOT).all()) and bool(np.array_equal(OPS.read(store, slots).values_ND, values))


def status_bytes(name: str) -> int:
    return int(next(line for line in STATUS.read_text().splitlines() if line.startswith(name)).split()[1]) * 1024


@pytest.mark.skipif(not STATUS.exists(), reason="peak memory is read from /proc")
def test_resizing_allocates_no_second_table() -> None:
    """In a process of its own, so that nothing else allocates."""
    command = module_command("tests.kernels.cpu.index.test_resize")
    done = subprocess.run(command, env=our_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_peak_memory() -> None:
    store, ids, values = filled(200_000, RowLayout(128, 1))
    small = store.num_bytes
    assert small > 100 << 20
    for num_slots in (300_000, 240_000):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before, bytes_before = status_bytes("VmRSS"), store.num_bytes
        crowded = OPS.rows_without_room(store, num_slots)
        gone = OPS.keys_of(store, crowded)[1]
        OPS.erase(store, crowded)
        store = OPS.resize(store, num_slots)
        growth = max(0, store.num_bytes - bytes_before)
        assert status_bytes("VmHWM") - before < growth + (24 << 20)
        kept = ~np.isin(ids, gone)
        ids, values = ids[kept], values[kept]
        assert holds(store, ids, values)
    assert status_bytes("VmRSS") - before < store.num_bytes - bytes_before + (
        24 << 20
    )  # freed memory goes back to the system


def test_an_array_that_is_still_held_costs_a_copy_and_nothing_else() -> None:
    store, ids, values = filled(1600, RowLayout(4, 1))
    for num_slots in (3200, 2400):
        held = arrays_of(store).values_CD
        OPS.erase(store, OPS.rows_without_room(store, num_slots))
        store = OPS.resize(store, num_slots)
        arrays_of(store).values_CD[:, 0] += 0
        assert holds(store, ids, values)
        assert len(held) > 0


def test_a_store_that_finds_no_memory_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids, values = filled(1600, RowLayout(4, 1))
    calls = iter(range(100))
    resized = arrays_of.__globals__["resized"]

    def short_of_memory(pages: Any, num_bytes: int) -> Any:
        if next(calls) == 2:
            raise OSError(12, "no memory")
        return resized(pages, num_bytes)

    monkeypatch.setattr("springtide.kernels.cpu.store.store.resized", short_of_memory)
    with pytest.raises(OSError, match="no memory"):
        OPS.resize(store, 3200)
    assert store.num_slots == 1600
    assert holds(store, ids, values)
    monkeypatch.undo()
    assert holds(OPS.resize(store, 3200), ids, values)


def test_slots_are_whole_buckets() -> None:
    store = OPS.allocate(32, 4, RowLayout(4, 1))
    for num_slots in (0, 17, -16):
        with pytest.raises(ValueError, match="multiple of 16"):
            OPS.resize(store, num_slots)
    with pytest.raises(ValueError, match="whole buckets"):
        OPS.rows_without_room(store, 64, 8)


if __name__ == "__main__":
    check_peak_memory()
