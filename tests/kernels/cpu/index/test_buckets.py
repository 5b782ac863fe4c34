"""The ops that find, place and choose keys, against the oracle."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.types import NO_SLOT, PRIORITY_BITS, TICK_BITS, RowLayout, priority_of
from tests.kernels.oracle import Index, Key, key_hash
from tests.kernels.small_batch import OPS, arrays, found, insert, keys_of

LAST_TICK = 2**TICK_BITS - 1
HIGHEST = 2 ** (PRIORITY_BITS - 1) - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# few keys, among them ids whose halves are alike, both ends of int64, and the last features
SMALL_KEYS = st.tuples(
    st.sampled_from([0, 1, 2, 32767, 32768, 65535]),
    st.integers(-3, 25) | st.sampled_from([INT64_MAX, INT64_MIN, 1 << 32]),
)
PRIORITIES = st.integers(-3, 3) | st.sampled_from([-HIGHEST - 1, HIGHEST, INT64_MIN, INT64_MAX])
STEPS = st.tuples(
    st.lists(SMALL_KEYS, unique=True, max_size=40),
    st.integers(0, 3),  # lookups still held
    st.lists(st.tuples(SMALL_KEYS, PRIORITIES), max_size=20),
    st.booleans(),  # whether some are erased
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=12), st.sampled_from([1, LAST_TICK - 12]), st.sampled_from([16, 32, 48]))
def test_the_index_equals_the_oracle(steps: list[Any], first_tick: int, num_slots: int) -> None:
    store, oracle = OPS.allocate(num_slots, 4, RowLayout(4, 1)), Index(num_slots, WIDTH, 4)
    for tick, (keys, num_held, priorities, erase) in enumerate(steps, first_tick):
        protect_from = max(first_tick, tick - num_held)
        ours = insert(store, keys, tick, protect_from)
        new, victims, homeless = oracle.find_or_insert(keys, tick, protect_from)
        assert [keys[u] for u in ours.new_N] == new
        assert list(zip(ours.victim_features_V.tolist(), ours.victim_ids_V.tolist(), strict=True)) == victims
        assert [key for key, slot in zip(keys, ours.slots_U, strict=True) if slot == NO_SLOT] == homeless
        OPS.set_priorities(store, found(store, [k for k, _ in priorities]), np.array([p for _, p in priorities], int))
        for key, priority in priorities:
            oracle.set_priority(key, priority)
        if erase:
            slots = found(store, keys[::2])
            OPS.erase(store, slots[slots != NO_SLOT])
            for key in keys[::2]:
                oracle.erase(key)
        standing = OPS.occupied_slots(store, 0, num_slots + 4)
        here = keys_of(store, standing)
        assert set(here) == oracle.keys()
        assert len(set(here)) == len(here)
        np.testing.assert_array_equal(found(store, here), standing)
        for feature, num in itertools.product([-1, 1, 65535], [0, 1, 5, 100]):
            assert keys_of(store, OPS.lowest_scores(store, feature, num, tick)) == oracle.lowest(feature, num, tick)
        weak = {key for key, (_, at) in oracle.overflow.items() if at < tick}
        assert set(keys_of(store, OPS.overflow_slots(store, tick))) == weak


@settings(deadline=None)
@given(
    st.lists(st.tuples(SMALL_KEYS, st.integers(-5, 5)), unique_by=lambda pair: pair[0], max_size=40),
    st.lists(st.integers(-5, 5), max_size=4),
    st.integers(0, 36),
    st.integers(0, 36),
)
def test_dead_rows_are_those_last_seen_before_the_horizon_of_their_feature(
    rows: list[tuple[Key, int]], horizons: list[int], one: int, other: int
) -> None:
    store, keys = OPS.allocate(32, 4, RowLayout(4, 1)), [key for key, _ in rows]
    slots = insert(store, keys, 1, 1).slots_U
    last_seen = dict(rows)
    here = [key for key, slot in zip(keys, slots, strict=True) if slot != NO_SLOT]
    columns = OPS.read(store, slots[slots != NO_SLOT])
    OPS.scatter(
        store, slots[slots != NO_SLOT], columns._replace(last_seen_N=np.array([last_seen[k] for k in here], int))
    )
    expected = [key for key in here if key[0] < len(horizons) and last_seen[key] < horizons[key[0]]]
    cutoffs_F = np.array(horizons, np.int64)
    features, _ = arrays(keys)
    assert [keys[n] for n in OPS.find_expired(store, slots, features, cutoffs_F)] == expected
    assert sorted(keys_of(store, OPS.expired_slots(store, 0, 36, cutoffs_F))) == sorted(expected)
    start, stop = min(one, other), max(one, other)
    part = OPS.expired_slots(store, start, stop, cutoffs_F)
    assert part.tolist() == [slot for slot in OPS.expired_slots(store, 0, 36, cutoffs_F) if start <= slot < stop]
    standing = OPS.occupied_slots(store, 0, 36)
    assert OPS.occupied_slots(store, start, stop).tolist() == [slot for slot in standing if start <= slot < stop]


def test_an_erased_key_is_not_found_beside_one_of_its_digest() -> None:
    # digests 0 and 1 are the same; an erased slot has digest 0 and still its old key
    alike = [(0, i) for i in range(3000) if key_hash((0, i)) & 0xFF in (0, 1)][:8]
    store = OPS.allocate(WIDTH, 4, RowLayout(4, 1))
    slots = insert(store, alike, 1, 1).slots_U
    for erased in range(1, len(alike)):
        OPS.erase(store, slots[erased : erased + 1])
        assert (found(store, alike) == NO_SLOT).sum() == erased


def test_keys_of_one_bucket_and_one_digest_are_told_apart() -> None:
    store = OPS.allocate(WIDTH, 16, RowLayout(4, 1))
    alike = [(f, i) for f in (0, 65535) for i in range(4000) if key_hash((f, i)) & 0xFF == 7][:32]
    slots = insert(store, alike, 1, 1).slots_U
    np.testing.assert_array_equal(found(store, alike), slots)
    assert keys_of(store, slots) == alike
    strangers = [(1, i) for i in range(40000) if key_hash((1, i)) & 0xFF == 7]
    assert (found(store, strangers) == NO_SLOT).all()


def test_two_threads_share_a_find() -> None:
    store = OPS.allocate(1024, 64, RowLayout(4, 1))
    keys = [(i % 3, i * 7) for i in range(900)]
    slots = insert(store, keys, 1, 1).slots_U
    features, ids = arrays(keys)
    key_hashes = OPS.hash_keys(features, ids)

    def find(part: slice) -> Any:
        return OPS.find(store, features[part], ids[part], key_hashes[part])

    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(find, [slice(0, 450), slice(450, 900)]))
    np.testing.assert_array_equal(np.concatenate(halves), slots)


def test_a_key_of_the_highest_score_word_may_still_go() -> None:
    store = OPS.allocate(WIDTH, 4, RowLayout(4, 1))
    slots = insert(store, [(0, i) for i in range(WIDTH)], LAST_TICK, LAST_TICK).slots_U
    OPS.set_priorities(store, slots, np.full(WIDTH, HIGHEST))
    assert len(insert(store, [(1, 0)], LAST_TICK, LAST_TICK).victim_ids_V) == 0
    assert len(insert(store, [(1, 1)], LAST_TICK, LAST_TICK + 1).victim_ids_V) == 1


def test_two_keys_with_one_key_hash_are_two_keys() -> None:
    golden = 0x9E37_79B9_7F4A_7C15
    twins = [(0, 5 ^ (golden - 2**64)), (1, 5)]
    assert key_hash(twins[0]) == key_hash(twins[1])
    store = OPS.allocate(WIDTH, 4, RowLayout(4, 1))
    slots = insert(store, twins, 1, 1).slots_U
    assert len(set(slots.tolist())) == 2
    np.testing.assert_array_equal(found(store, twins), slots)


def test_all_keys_of_a_batch_in_one_bucket_fill_the_overflow_area() -> None:
    store = OPS.allocate(WIDTH, 8, RowLayout(4, 1))
    ours = insert(store, [(0, i) for i in range(WIDTH + 10)], 1, 1)
    assert (ours.slots_U == NO_SLOT).sum() == 2
    assert len(ours.new_N) == WIDTH + 8
    store = OPS.grow_overflow(store, 20)
    again = insert(store, [(0, i) for i in range(WIDTH + 10)], 1, 1)
    assert len(again.new_N) == 2
    np.testing.assert_array_equal(again.slots_U[: WIDTH + 8], ours.slots_U[: WIDTH + 8])
    assert len(OPS.overflow_slots(store, 1)) == 0
    assert len(OPS.overflow_slots(store, 2)) == 10


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 60), unique=True, max_size=20), st.booleans()), max_size=20))
def test_overflow_rows_come_and_go_and_the_others_are_found(steps: list[tuple[list[int], bool]]) -> None:
    store, oracle = OPS.allocate(WIDTH, 20, RowLayout(4, 1)), Index(WIDTH, WIDTH, 20)
    fillers = [(9, i) for i in range(WIDTH)]  # held all the time: everything else is in the overflow area
    insert(store, fillers, 1, 1)
    oracle.find_or_insert(fillers, 1, 1)
    for ids, twice in steps:
        keys = [(0, i) for i in ids]
        insert(store, keys, 2, 1)
        oracle.find_or_insert(keys, 2, 1)
        gone = keys[::2]
        slots = found(store, gone)
        slots = slots[slots != NO_SLOT]
        OPS.erase(store, np.concatenate([slots, slots]) if twice else slots)
        for key in gone:
            oracle.erase(key)
        everything = [(0, i) for i in range(61)]
        expected = [key in oracle.overflow for key in everything]
        assert (found(store, everything) != NO_SLOT).tolist() == expected
        assert set(keys_of(store, OPS.overflow_slots(store, 3))) == set(oracle.overflow)


def test_a_high_priority_outlives_a_late_tick_and_a_low_one_does_not() -> None:
    store = OPS.allocate(WIDTH, 4, RowLayout(4, 1))
    keys = [(0, i) for i in range(WIDTH)]
    slots = insert(store, keys, 1, 1).slots_U
    OPS.set_priorities(store, slots, np.arange(WIDTH))
    insert(store, keys[:1], LAST_TICK - 2, 2)  # asked for last, and still of the lowest priority
    gone = insert(store, [(1, 0)], LAST_TICK - 1, LAST_TICK)
    assert gone.victim_ids_V.tolist() == [0]
    OPS.set_priorities(store, found(store, [(1, 0)]), np.array([INT64_MIN]))
    assert insert(store, [(1, 1)], LAST_TICK, LAST_TICK).victim_features_V.tolist() == [1]


def test_a_tick_of_more_than_40_bits_is_refused() -> None:
    store = OPS.allocate(WIDTH, 4, RowLayout(4, 1))
    for tick in (-1, LAST_TICK + 1):
        with pytest.raises(ValueError, match="40 bits"):
            insert(store, [(0, 1)], tick, tick)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20))
def test_priorities_keep_the_order_of_the_scores(scores: list[float]) -> None:
    priorities = priority_of(np.array(scores, np.float32))
    assert priorities.dtype == np.int64
    assert (np.diff(priorities[np.argsort(np.array(scores, np.float32), kind="stable")]) >= 0).all()
    assert (np.abs(priorities) <= HIGHEST + 1).all()


def test_priorities_of_the_ends_and_of_nothing() -> None:
    scores = np.array([np.nan, -np.inf, -3.4e38, -1, -1e-45, -0.0, 0.0, 1e-45, 1, 1.00001, 3.4e38, np.inf], np.float32)
    priorities = priority_of(scores).tolist()
    assert priorities == sorted(priorities)
    assert priorities[0] == -HIGHEST - 1
    assert priorities[5] == priorities[6] == 0
    assert priority_of(np.array([1, 1 + 2**-15], np.float32)).tolist() == [0x3F8000, 0x3F8001]
