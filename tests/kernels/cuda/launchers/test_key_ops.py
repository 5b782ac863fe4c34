"""The CUDA backend's hashes, unique keys, sketch and ghosts are the CPU backend's."""

from typing import Any

import numpy as np
import pytest

from springtide.kernels.cpu.ops import CpuOps
from springtide.kernels.cuda.ops import CudaOps
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of, host

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
    np.testing.assert_array_equal(host(ops.mix_keys(put(features), put(ids))), CPU.mix_keys(features, ids))
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
        mixed, occurrences = rng.choice(everything, 25, replace=False), rng.integers(1, 90, 25)
        results = [
            ops.sketch_add(ours, put(mixed), put(occurrences), age),
            CPU.sketch_add(theirs, mixed, occurrences, age),
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
        mixed = rng.integers(0, 2**64, 12, np.uint64)
        ops.ghosts_add(ours, device.put(mixed), tick)
        CPU.ghosts_add(theirs, mixed, tick)
        np.testing.assert_array_equal(host(ours.arrays), theirs.arrays)
        mine = ops.ghosts_count(ours, device.put(mixed[::3]), tick - 2)
        assert mine == CPU.ghosts_count(theirs, mixed[::3], tick - 2) > 0
