"""Hashes against vectors of the xxHash library; blocks of random bytes, which must never be read past their ends."""

import random
import struct

import numpy as np
import pytest

from springtide.kernels.cpu.table_file import blocks

# XXH3_64bits of i * 7 % 251 for i below the length
VECTORS = {
    241: 0xC614C8C3575348C1,
    255: 0x7170BA88ECC1B4D7,
    256: 0xF4186DC163A3283C,
    1024: 0xF22EF3DC84FF47EA,
    1025: 0x43F869A83769A435,
    1088: 0x40D71F037CD0C530,
    1089: 0xC1F23F6BFA8243A4,
    4096: 0x5D9027C84D5F33F7,
    5000: 0xCE29A19460EE1BFC,
}
KEYS = [(n * 977, n % 3) for n in range(1, 40)]  # ascending, as (key hash, feature)


def varint(number):
    content = b""
    while number >= 0x80:
        content, number = content + bytes([number & 0x7F | 0x80]), number >> 7
    return content + bytes([number])


def row_block(keys, values, *, kind=1, interval=16):
    """A block as RocksDB writes it."""
    content, restarts, before = b"", [], b""
    for n, ((key_hash, feature), value) in enumerate(zip(keys, values, strict=True)):
        key = key_hash.to_bytes(8, "big") + feature.to_bytes(2, "big") + bytes([kind]) + n.to_bytes(7, "little")
        shared = 0
        if n % interval == 0:
            restarts.append(len(content))
        else:
            while shared < len(key) and key[shared] == before[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return content + struct.pack(f"<{len(restarts)}I", *restarts) + struct.pack("<I", len(restarts))


def find(content, key_hash, feature):
    """What is found in a block that ends where its memory ends."""
    array = np.frombuffer(content, np.uint8)
    kind, at, length = blocks.find_in_block(array.ctypes.data, len(content), np.uint64(key_hash), feature)
    start = at - array.ctypes.data
    return kind, content[start : start + length] if kind == blocks.FOUND else None


@pytest.mark.parametrize("num_bytes", VECTORS)
def test_xxh3_equals_the_librarys(num_bytes):
    content = np.array([i * 7 % 251 for i in range(num_bytes)], np.uint8)
    assert int(blocks.hash_bytes(content.ctypes.data, num_bytes)) == VECTORS[num_bytes]


@pytest.mark.parametrize("interval", [1, 4, 16])
def test_every_key_of_a_block_is_found_and_no_other(interval):
    values = [b"%d" % n * n for n in range(len(KEYS))]
    content = row_block(KEYS, values, interval=interval)
    for key, value in zip(KEYS, values, strict=True):
        assert find(content, *key) == (blocks.FOUND, value)
        assert find(content, key[0], key[1] + 1) == (blocks.NOT_FOUND, None)
        assert find(content, key[0] + 1, key[1]) == (blocks.NOT_FOUND, None)
    assert find(content, 0, 0) == (blocks.NOT_FOUND, None)
    assert find(content, 2**64 - 1, 65535) == (blocks.NOT_FOUND, None)


def test_keys_that_differ_in_the_feature_only_are_told_apart():
    keys = [(7, feature) for feature in (0, 1, 255, 256, 65535)]
    content = row_block(keys, [b"%d" % feature for _, feature in keys])
    assert [find(content, *key) for key in keys] == [(blocks.FOUND, b"%d" % feature) for _, feature in keys]
    assert find(content, 7, 2) == (blocks.NOT_FOUND, None)


def test_a_deletion_is_left_to_rocksdb():
    assert find(row_block(KEYS, [b""] * len(KEYS), kind=0), *KEYS[5]) == (blocks.UNSURE, None)


def test_damaged_blocks_lead_nowhere_else():
    source = random.Random(3)
    good = row_block(KEYS, [b"x" * 20] * len(KEYS))
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(source.randrange(1, 4)):
            bad[source.randrange(len(bad))] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
        content = bytes(bad[: source.choice([len(bad), source.randrange(len(bad))])])
        kind, value = find(content, *source.choice(KEYS))
        assert kind in (blocks.NOT_FOUND, blocks.FOUND, blocks.UNSURE)
        assert value is None or len(value) <= len(content)


def test_random_bytes_are_no_index_or_a_small_one():
    source = random.Random(4)
    separators, offsets = np.empty(50, np.uint64), np.empty(51, np.uint32)
    for _ in range(3000):
        content = np.frombuffer(source.randbytes(source.randrange(200)), np.uint8)
        assert -1 <= blocks.parse_index(content.ctypes.data, len(content), separators, offsets) <= 50


def test_bytes_are_swapped():
    assert int(blocks.swap_bytes(np.uint64(0x0102030405060708))) == 0x0807060504030201
