"""The CUDA backend's ops that find, place and choose keys, against the oracle: kernels and launchers together."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.cpu.ops import CpuOps
from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.cuda.store import WIDTH, arrays_of
from springtide.kernels.types import NO_SLOT, TICK_BITS, InsertResult, RowLayout
from springtide_client.keys import hash_keys
from tests.kernels.oracle import Index, Key, key_hash
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of, host

LAST_TICK = 2**TICK_BITS - 1
LAYOUT = RowLayout(3, 4, "bfloat16")


class StorePair:
    """A store of the CUDA backend and the oracle's, given the same calls."""

    def __init__(self, device: Any, num_slots: int, num_overflow: int) -> None:
        self.ops, self.put, self.oracle = CudaOps(device), device.put, Index(num_slots, WIDTH, num_overflow)
        self.store = self.ops.allocate(num_slots, num_overflow, LAYOUT)

    def arrays(self, keys: list[Key]) -> tuple[Any, Any, Any]:
        """Features, ids and key hashes on the device."""
        key_hashes = np.array([key_hash(key) for key in keys], np.uint64)
        features, ids = np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)
        return self.put(features), self.put(ids), self.put(key_hashes)

    def find(self, keys: list[Key]) -> Any:
        return host(self.ops.find(self.store, *self.arrays(keys)))

    def keys_of(self, slots: Any) -> list[Key]:
        features, ids = (host(array) for array in self.ops.keys_of(self.store, slots))
        return list(zip(features.tolist(), ids.tolist(), strict=True))

    def place(self, keys: list[Key], tick: int, protect_from: int) -> InsertResult:
        """The verb; new keys, victims and keys without room are the oracle's."""
        placed = self.ops.find_or_insert(self.store, *self.arrays(keys), tick, protect_from)
        placed = InsertResult(*(host(array) for array in placed))
        new, victims, homeless = self.oracle.find_or_insert(keys, tick, protect_from)
        assert [keys[u] for u in placed.new_N] == new
        assert list(zip(placed.victim_features_V.tolist(), placed.victim_ids_V.tolist(), strict=True)) == victims
        assert [key for key, slot in zip(keys, placed.slots_U, strict=True) if slot == NO_SLOT] == homeless
        return placed

    def check(self, keys: list[Key]) -> None:
        """Of these keys both hold the same ones, each in a slot of its own that says so."""
        slots = self.find(keys)
        here = [key for key, slot in zip(keys, slots, strict=True) if slot != NO_SLOT]
        assert set(here) == {key for key in keys if self.oracle.home(key) is not None}
        standing = slots[slots != NO_SLOT]
        assert len(set(standing.tolist())) == len(standing)
        assert self.keys_of(self.put(standing)) == here
        assert host(arrays_of(self.store).keys.elsewhere_B).sum() == len(self.oracle.overflow)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("num_slots", "num_overflow", "seed"), [(WIDTH, 10, 1), (3 * WIDTH, 4, 2)])
def test_the_index_equals_the_oracle(name: str, num_slots: int, num_overflow: int, seed: int) -> None:
    pair, rng = StorePair(device_of(name, seed), num_slots, num_overflow), np.random.default_rng(seed)
    everything = [(f, i) for f in (0, 65535) for i in range(330)]
    for tick in range(LAST_TICK - 20, LAST_TICK):
        keys = [everything[i] for i in rng.choice(len(everything), rng.integers(0, 90), replace=False)]
        protect_from = tick - int(rng.integers(0, 4)) if rng.random() < 0.9 else tick + 1
        pair.place(keys, tick, protect_from)
        keys = keys[::2]  # the others keep the priorities they had
        slots, priorities = pair.find(keys), rng.integers(-3, 3, len(keys)) << int(rng.choice([0, 40]))
        pair.ops.set_priorities(pair.store, pair.put(slots), pair.put(priorities))
        for key, priority in zip(keys, priorities.tolist(), strict=True):
            pair.oracle.set_priority(key, priority)
        if tick % 3 == 0:
            pair.ops.erase(pair.store, pair.put(np.concatenate([slots[::2], slots[::4]])))
            for key in keys[::2]:
                pair.oracle.erase(key)
    pair.check(everything)


@pytest.mark.parametrize("name", DEVICES)
def test_all_keys_of_a_batch_in_one_bucket_fill_the_overflow_area(name: str) -> None:
    pair = StorePair(device_of(name), WIDTH, 8)
    keys: list[Key] = [(0, i) for i in range(WIDTH + 10)]
    placed = pair.place(keys, 1, 1)
    assert (placed.slots_U == NO_SLOT).sum() == 2
    slots = pair.find(keys[:4] + keys[-4:])
    pair.ops.erase(pair.store, pair.put(slots))
    for key in keys[:4] + keys[-4:]:
        pair.oracle.erase(key)
    pair.check(keys)
    pair.place(keys, 1, 1)
    pair.check(keys)


# few keys of few buckets, so that they meet; ids whose halves are alike, both ends of int64, and the last features
HARD_KEYS = st.tuples(
    st.sampled_from([0, 1, 32768, 65535]),
    st.integers(-3, 120) | st.sampled_from([2**63 - 1, -(2**63), 1 << 32]),
)
HARD_STEPS = st.tuples(
    st.lists(HARD_KEYS, unique=True, max_size=200),
    st.integers(0, 3),  # look-ups still held
    st.integers(-(2**25), 2**25),  # a priority for some, also beyond what is kept
    st.booleans(),  # whether some are erased
)


@pytest.mark.parametrize("name", DEVICES)
@settings(max_examples=10)
@given(steps=st.lists(HARD_STEPS, min_size=2, max_size=5), num_buckets=st.sampled_from([1, 2]), seed=st.integers(0, 9))
def test_batches_made_to_collide_equal_the_oracle(name: str, steps: list[Any], num_buckets: int, seed: int) -> None:
    pair = StorePair(device_of(name, seed), num_buckets * WIDTH, 20)
    for tick, (keys, num_held, priority, erases) in enumerate(steps, 5):
        pair.place(keys, tick, tick - num_held)
        some = keys[::3]
        priorities = np.full(len(some), priority)
        pair.ops.set_priorities(pair.store, pair.put(pair.find(some)), pair.put(priorities))
        for key in some:
            pair.oracle.set_priority(key, priority)
        if erases:
            pair.ops.erase(pair.store, pair.put(pair.find(keys[::2])))
            for key in keys[::2]:
                pair.oracle.erase(key)
        pair.check(keys)


def keys_of_one_bucket(num: int, num_buckets: int, seed: int) -> list[Key]:
    """Different keys whose bucket is the last of so many."""
    rng, keys = np.random.default_rng(seed), set[Key]()
    while len(keys) < num:
        features = rng.integers(0, 4, 4 * num_buckets * num).astype(np.uint16)
        ids = rng.integers(-(2**63), 2**63 - 1, len(features))
        there = (hash_keys(features, ids) >> np.uint64(32)) * np.uint64(num_buckets) >> np.uint64(32) == num_buckets - 1
        keys.update(zip(features[there].tolist(), ids[there].tolist(), strict=True))
    return sorted(keys)[:num]


CROWDS = st.tuples(
    st.integers(1, 40),  # by which the number of keys is divided
    st.integers(0, 2),  # look-ups still held, whose rows must stay
    st.booleans(),  # whether keys of the batch before are asked for again, beside new ones
)


@pytest.mark.parametrize("name", DEVICES)
@settings(max_examples=8)
@given(crowds=st.lists(CROWDS, min_size=2, max_size=4), num_buckets=st.sampled_from([1, 7]), seed=st.integers(0, 99))
def test_batches_of_one_bucket_full_of_protected_keys_equal_the_oracle(
    name: str, crowds: list[tuple[int, int, bool]], num_buckets: int, seed: int
) -> None:
    most = 12_000 if name == "gpu" else 400
    pair = StorePair(device_of(name, seed), num_buckets * WIDTH, most // 3)
    keys, before = keys_of_one_bucket(most, num_buckets, seed), list[Key]()
    rng = np.random.default_rng(seed)
    for tick, (part, num_held, again) in enumerate(crowds, 5):
        batch = [keys[i] for i in rng.choice(most, most // part, replace=False)]
        batch = list(dict.fromkeys([*before[::2], *batch] if again else batch))
        pair.place(batch, tick, tick - num_held)
        before = batch
        overflowing = list(pair.oracle.overflow)[::2]  # room for the next ones
        pair.ops.erase(pair.store, pair.put(pair.find(overflowing)))
        for key in overflowing:
            pair.oracle.erase(key)
    pair.check(keys)


@pytest.mark.parametrize("name", DEVICES)
def test_one_bucket_takes_a_whole_batch_in_its_order(name: str) -> None:
    num = 100_000 if name == "gpu" else 400
    pair = StorePair(device_of(name, seed=4), WIDTH, num // 4)
    keys: list[Key] = [(3, i) for i in range(num)]
    placed = pair.place(keys, 1, 1)  # all protected: 128, then the overflow area, then nobody
    assert (placed.slots_U != NO_SLOT).sum() == WIDTH + num // 4
    pair.ops.erase(pair.store, pair.put(placed.slots_U[WIDTH:]))
    for key in list(pair.oracle.overflow):
        pair.oracle.erase(key)
    placed = pair.place([(4, i) for i in range(num)], 2, 3)  # none protected, also not those of this call
    assert len(placed.victim_ids_V) == num


@pytest.mark.parametrize("name", DEVICES)
def test_keys_of_one_digest_and_keys_of_one_key_hash_are_told_apart(name: str) -> None:
    pair = StorePair(device_of(name), WIDTH, 4)
    golden = 0x9E37_79B9_7F4A_7C15
    same: list[Key] = [(0, 5 ^ (golden - 2**64)), (1, 5)]
    assert key_hash(same[0]) == key_hash(same[1])
    alike = [(f, i) for f in (0, 65535) for i in range(4000) if key_hash((f, i)) & 0xFF in (0, 1)][:40]
    pair.place(same + alike, 1, 1)
    pair.check(same + alike)
    strangers = [(1, i) for i in range(4000) if key_hash((1, i)) & 0xFF in (0, 1)]
    assert (pair.find(strangers) == NO_SLOT).all()
    slots = pair.find(alike)
    pair.ops.erase(pair.store, pair.put(slots[:20]))  # their digests go, their ids stay
    assert (pair.find(alike)[:20] == NO_SLOT).all()


@pytest.mark.parametrize("name", DEVICES)
def test_no_verb_waits_where_answers_keep_their_longest_length(name: str) -> None:
    device = device_of(name)
    pair = StorePair(device, WIDTH, 4)
    patient = pair.ops
    pair.place([(0, i) for i in range(WIDTH)], 1, 1)
    pair.ops = CudaOps(device, exact=False)
    device.read = None  # type: ignore[method-assign]
    features, ids, key_hashes = (host(array) for array in pair.arrays([(0, 3), (1, 7), (0, 0)]))
    key_hashes[2] = 1  # (0, 0) with a key hash that is not its own is no key
    batch = [pair.put(array) for array in (features, ids, key_hashes)]
    placed = InsertResult(*(host(array) for array in pair.ops.find_or_insert(pair.store, *batch, 2, 2)))
    assert placed.new_N.tolist() == [1, NO_SLOT, NO_SLOT]
    assert placed.victim_slots_V[1:].tolist() == [NO_SLOT, NO_SLOT]
    assert placed.slots_U[2] == NO_SLOT
    assert placed.slots_U[1] == placed.victim_slots_V[0]
    assert host(patient.find(pair.store, *batch)).tolist() == placed.slots_U.tolist()


@pytest.mark.parametrize("name", DEVICES)
def test_arguments_of_another_kind_are_refused_by_name(name: str) -> None:
    pair = StorePair(device_of(name), WIDTH, 4)
    features, ids, key_hashes = pair.arrays([(0, 1), (0, 2)])
    with pytest.raises(ValueError, match=r"features uint16 \(1,\) for contiguous uint16 \(2,\)"):
        pair.ops.find(pair.store, features[:1], ids, key_hashes)
    with pytest.raises(ValueError, match="key hashes int64"):
        pair.ops.find(pair.store, features, ids, ids)
    with pytest.raises(ValueError, match="40 bits"):
        pair.ops.find_or_insert(pair.store, features, ids, key_hashes, 2**40, 1)


CPU = CpuOps()
ENDS = [2**63 - 1, -(2**63), 1 << 32, 0]


def batch(rng: Any, num: int, num_ids: int) -> tuple[Any, Any, Any]:
    """Features, ids and event times of a batch."""
    ids = np.concatenate([rng.integers(-num_ids, num_ids, num), ENDS]).astype(np.int64)
    features = rng.choice([0, 1, 65535], len(ids)).astype(np.uint16)
    return features, ids, rng.integers(-5, 5, len(ids))


@pytest.mark.parametrize("name", DEVICES)
def test_hashes_and_first_values_are_the_cpus(name: str) -> None:
    device = device_of(name)
    ops, (features, ids, _) = CudaOps(device), batch(np.random.default_rng(1), 50, 10**12)
    put = device.put
    np.testing.assert_array_equal(host(ops.hash_keys(put(features), put(ids))), CPU.hash_keys(features, ids))
    ours = ops.initial_values(put(features), put(ids), 5, 7, 0.3)
    np.testing.assert_array_equal(host(ours), CPU.initial_values(features, ids, 5, 7, 0.3))
    texts = [b"", b"a", b"springtide", bytes(range(64)), b"12345678"]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    joined = np.frombuffer(b"".join(texts), np.uint8)
    ours = ops.hash_texts(put(joined), put(offsets))
    np.testing.assert_array_equal(host(ours), CPU.hash_texts(joined, offsets))


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("num", "num_ids"), [(0, 1), (300, 20), (300, 10**9), (700, 1)])
def test_unique_keys_are_the_cpus(name: str, num: int, num_ids: int) -> None:
    device = device_of(name, seed=num_ids % 97)
    ops, keys = CudaOps(device), batch(np.random.default_rng(num), num, num_ids)
    keys = keys if num else tuple(array[:0] for array in keys)  # type: ignore[assignment]
    ours, expected = ops.unique(*(device.put(array) for array in keys)), CPU.unique(*keys)
    for field, mine, theirs in zip(expected._fields, ours, expected, strict=True):
        np.testing.assert_array_equal(host(mine), theirs, err_msg=field)
    groups = ops.group(ours.inverse_K, ours.occurrences_U)
    for mine, theirs in zip(groups, CPU.group(expected.inverse_K, expected.occurrences_U), strict=True):
        np.testing.assert_array_equal(host(mine), theirs)


@pytest.mark.parametrize("name", DEVICES)
def test_as_many_duplicates_as_there_are_keys_are_one(name: str) -> None:
    num, device = 1 << 20 if name == "gpu" else 600, device_of(name, seed=8)
    ops, put = CudaOps(device), device.put
    features, ids, times = np.full(num, 9, np.uint16), np.full(num, -1), np.arange(num)
    ids[num // 2] = 5
    unique = ops.unique(put(features), put(ids), put(times))
    assert host(unique.ids_U).tolist() == [-1, 5]
    assert host(unique.occurrences_U).tolist() == [num - 1, 1]
    assert host(unique.last_seen_U).tolist() == [num - 1, num // 2]
    order, offsets = ops.group(unique.inverse_K, unique.occurrences_U)
    assert host(offsets).tolist() == [0, num - 1, num]
    assert host(order)[-1] == num // 2


@pytest.mark.parametrize("name", DEVICES)
def test_the_sketch_is_the_cpus_block_by_block(name: str) -> None:
    device, rng = device_of(name, seed=5), np.random.default_rng(4)
    ops, put = CudaOps(device), device.put
    ours, theirs = ops.new_sketch(64 * 7 + 3), CPU.new_sketch(64 * 7 + 3)
    assert ours.num_blocks == theirs.num_blocks == 7
    everything = rng.integers(0, 2**64, 60, np.uint64)
    for age in (0, 0, 1, 1, 3, 12, 12):
        key_hash, occurrences = rng.choice(everything, 25, replace=False), rng.integers(1, 90, 25)
        results = [
            ops.sketch_add(ours, put(key_hash), put(occurrences), age),
            CPU.sketch_add(theirs, key_hash, occurrences, age),
        ]
        for mine, expected in zip(*results, strict=True):
            np.testing.assert_array_equal(host(mine), expected)
    for age in (12, 14, 40):
        mine = ops.sketch_estimate(ours, put(everything), age)
        np.testing.assert_array_equal(host(mine), CPU.sketch_estimate(theirs, everything, age))
    blocks = np.array([6, 0, 3])
    np.testing.assert_array_equal(host(ops.sketch_read(ours, put(blocks))), CPU.sketch_read(theirs, blocks))
    other = rng.integers(0, 256, (3, 64)).astype(np.uint8)
    ops.sketch_write(ours, put(blocks), put(other))
    np.testing.assert_array_equal(host(ops.sketch_read(ours, put(blocks))), other)
    for strange in (-1, 7):
        with pytest.raises(ValueError, match="sketch of 7"):
            ops.sketch_write(ours, put(np.array([strange])), put(other[:1]))


@pytest.mark.parametrize("name", DEVICES)
def test_ghosts_are_the_cpus(name: str) -> None:
    device, rng = device_of(name, seed=6), np.random.default_rng(6)
    ops = CudaOps(device)
    ours, theirs = ops.new_ghosts(40), CPU.new_ghosts(40)
    for tick in range(2**32 - 4, 2**32 + 4):
        key_hash = rng.integers(0, 2**64, 12, np.uint64)
        ops.ghosts_add(ours, device.put(key_hash), tick)
        CPU.ghosts_add(theirs, key_hash, tick)
        np.testing.assert_array_equal(host(ours.arrays), theirs.arrays)
        mine = ops.ghosts_count(ours, device.put(key_hash[::3]), tick - 2)
        assert mine == CPU.ghosts_count(theirs, key_hash[::3], tick - 2) > 0


class Filled(StorePair):
    """A store with keys that the oracle's index has too, priorities and times of their own, and told rows."""

    def __init__(self, device: Any, num_slots: int, keys: list[Key], num_overflow: int = 40) -> None:
        super().__init__(device, num_slots, num_overflow)
        rng = np.random.default_rng(len(keys))
        for tick, part in enumerate((keys[::2], keys[1::2]), 1):
            self.place(part, tick, 1)
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
    homes = [range_of(key_hash(key), others // WIDTH) for key in left]
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
