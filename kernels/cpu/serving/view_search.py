"""Rows of some keys out of layers sorted by key hash: a view's look-up in one call. Layers are known by addresses."""

# L layers newest first, C columns of a layer's line, K keys asked for, F features, W words of a filter
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.cpu.intrinsics.instructions import (
    copy_bytes,
    multiply_high,
    prefetch_address,
    read_int64,
    read_uint8,
    read_uint32,
)
from springtide.kernels.cpu.intrinsics.specialize import holding_gil
from springtide.kernels.cpu.sorted_keys import interpolate_again, row_of
from springtide.kernels.njit import njit
from springtide_client.rows.admission_counts import BLOCK_BYTES, COUNTERS_AT, NUM_COUNTERS
from springtide_client.rows.search import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN

# columns of a layer's line: number of rows, addresses of its arrays, its filter (0: none), the mask of filter bits
LENGTH, MIXED, FEATURE, VALUE, LAST_SEEN, MARKS, FILTER, FILTER_MASK = 0, 1, 2, 3, 4, 5, 6, 7
# addresses of counts and states (0: none), and the bytes from one row's states to the next one's
COUNT, STATE, STATE_STRIDE, NUM_COLUMNS = 8, 9, 10, 11
# columns of a sketch's line: number of blocks, addresses of their numbers and bytes
NUM_BLOCKS, BLOCK, BYTES, NUM_SKETCH_COLUMNS = 0, 1, 2, 3

LINE_BYTES = 64
S3, S6, S32, LOW_3, LOW_6 = np.uint64(3), np.uint64(6), np.uint64(32), np.uint64(7), np.uint64(63)


@njit(nogil=True, cache=True)
def fill_filter(key_hash_n: Any, words_W: Any) -> None:
    """Set the bit of each key; a power of two of words, found by the low bits of the key hash."""
    mask = np.uint64(len(words_W) * 64 - 1)
    for n in range(len(key_hash_n)):
        bit = key_hash_n[n] & mask
        words_W[bit >> S6] |= np.uint64(1) << (bit & LOW_6)


@njit(nogil=True, cache=True)
def search_layers(
    layers_LC: Any, cutoffs_F: Any, features_K: Any, ids_K: Any, dim: Any, out: Any, states_KW: Any, counts_K: Any
) -> Any:
    """Fill `out`, uint8: K rows of dim float32, NaN where there is none, then K status bytes. One feature may stand
    for all. Returns how many are unknown. Unless `counts_K` has length 0, it and `states_KW` are filled too, where
    there is a row.
    """
    wants_states, state_bytes = len(counts_K) > 0, 4 * states_KW.shape[1]
    states_address = states_KW.ctypes.data
    num_keys, row_bytes = len(ids_K), 4 * dim
    last = len(features_K) - 1
    rows_address, status_at = out.ctypes.data, num_keys * row_bytes
    key_hash_K = np.empty(num_keys, np.uint64)
    left_K = np.empty(num_keys, np.int64)  # keys that no layer has had so far
    asked_K = np.empty(num_keys, np.int64)  # of them, those that the layer may have
    place_K = np.empty(num_keys, np.int64)  # where, of each asked key
    for k in range(num_keys):
        key_hash_K[k] = hash_key(features_K[min(k, last)], ids_K[k])
        left_K[k] = k
    num_left = num_keys
    for layer in range(len(layers_LC)):
        length = layers_LC[layer, LENGTH]
        mixed_address, feature_address = layers_LC[layer, MIXED], layers_LC[layer, FEATURE]
        value_address, seen_address = layers_LC[layer, VALUE], layers_LC[layer, LAST_SEEN]
        filter_address, marks_address = layers_LC[layer, FILTER], layers_LC[layer, MARKS]
        filter_mask = np.uint64(layers_LC[layer, FILTER_MASK])
        num_asked, num_kept = 0, 0
        # all keys take each step together: the lines they wait for travel side by side
        for i in range(num_left):
            k = left_K[i]
            if filter_address != 0:
                bit = key_hash_K[k] & filter_mask
                if not (read_uint8(filter_address, np.int64(bit >> S3)) >> (bit & LOW_3)) & np.uint64(1):
                    left_K[num_kept] = k
                    num_kept += 1
                    continue
            place = np.int64(multiply_high(key_hash_K[k], np.uint64(length)))
            asked_K[num_asked], place_K[num_asked] = k, place
            num_asked += 1
            prefetch_address(mixed_address + 8 * place)
        for _ in range(2):
            for i in range(num_asked):
                place = interpolate_again(mixed_address, length, place_K[i], key_hash_K[asked_K[i]])
                place_K[i] = place
                prefetch_address(mixed_address + 8 * place)
        for i in range(num_asked):
            k = asked_K[i]
            row = row_of(mixed_address, feature_address, length, place_K[i], key_hash_K[k], features_K[min(k, last)])
            place_K[i] = row
            if row >= 0:
                for line in range(0, row_bytes, LINE_BYTES):
                    prefetch_address(value_address + row * row_bytes + line)
        for i in range(num_asked):
            k, row = asked_K[i], place_K[i]
            if row < 0:
                left_K[num_kept] = k
                num_kept += 1
                continue
            feature = np.int64(features_K[min(k, last)])
            is_dead = marks_address != 0 and read_uint8(marks_address, row) != 0
            if feature < len(cutoffs_F) and read_int64(seen_address, row) < cutoffs_F[feature]:
                is_dead = True
            if is_dead:
                out[status_at + k] = FORGOTTEN
                fill_nan(out, k * row_bytes, row_bytes)
            else:
                out[status_at + k] = KNOWN
                copy_bytes(rows_address + k * row_bytes, value_address + row * row_bytes, row_bytes)
                if wants_states:
                    counts_K[k] = read_int64(layers_LC[layer, COUNT], row)
                    if state_bytes > 0:
                        state = layers_LC[layer, STATE] + row * layers_LC[layer, STATE_STRIDE]
                        copy_bytes(states_address + k * state_bytes, state, state_bytes)
        num_left = num_kept
        if num_left == 0:
            break
    for i in range(num_left):
        out[status_at + left_K[i]] = UNKNOWN
        fill_nan(out, left_K[i] * row_bytes, row_bytes)
    return num_left


search_holding_gil = holding_gil(search_layers)


@njit(nogil=True, cache=True)
def fill_nan(out: Any, start: Any, num_bytes: Any) -> None:
    """float32 NaN as numpy writes it."""
    for at in range(start, start + num_bytes, 4):
        out[at], out[at + 1], out[at + 2], out[at + 3] = 0, 0, 0xC0, 0x7F


@njit(nogil=True, cache=True)
def mark_seen(
    sketch_LC: Any,
    base_address: Any,
    num_blocks: Any,
    age: Any,
    admits_F: Any,
    features_K: Any,
    ids_K: Any,
    status_K: Any,
) -> None:
    """Of unknown keys of features that ask for admission, those the sketch has counted are not admitted."""
    last = len(features_K) - 1
    for k in range(len(ids_K)):
        feature = features_K[min(k, last)]
        if status_K[k] != UNKNOWN or feature >= len(admits_F) or not admits_F[feature]:
            continue
        key_hash = hash_key(feature, ids_K[k])
        block = np.int64((key_hash >> S32) * np.uint64(num_blocks) >> S32)
        address = base_address + block * BLOCK_BYTES if base_address != 0 else 0
        for layer in range(len(sketch_LC)):
            place = block_of(sketch_LC[layer, BLOCK], sketch_LC[layer, NUM_BLOCKS], block)
            if place >= 0:
                address = sketch_LC[layer, BYTES] + place * BLOCK_BYTES
                break
        if address != 0 and estimate(address, key_hash, age) > 0:
            status_K[k] = NOT_ADMITTED


@njit(nogil=True, cache=True)
def block_of(numbers_address: Any, length: Any, block: Any) -> Any:
    """The index of a block in a layer of the sketch, -1 if it is not there."""
    low, high = 0, length
    while low < high:
        middle = (low + high) >> 1
        if read_int64(numbers_address, middle) < block:
            low = middle + 1
        else:
            high = middle
    return low if low < length and read_int64(numbers_address, low) == block else -1


@njit(nogil=True, cache=True)
def estimate(address: Any, key_hash: Any, age: Any) -> Any:
    """springtide_client.rows.admission_counts's estimate in one block."""
    least = np.int64(255)
    for i in range(4):
        byte = (key_hash >> np.uint64(8 * i)) & np.uint64(255)
        at = COUNTERS_AT + np.int64(byte * np.uint64(NUM_COUNTERS) >> np.uint64(8))
        least = min(least, np.int64(read_uint8(address, at)))
    halvings = min(max(age - np.int64(read_uint32(address, 0)), 0), 8)
    return least >> halvings
