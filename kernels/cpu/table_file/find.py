"""Find many keys in the mapped tables of a RocksDB database, the newest first, without the GIL.

A table of level 0 is a run of its own; the tables of a deeper level are one run, in the order of their keys. Where
tables come from the disk, a search reads one block of each key, which was asked for before, and goes on later.
"""

# U keys, R runs, T tables, B blocks of a table
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import (
    prefetch_address,
    read_uint8,
    read_uint32,
    read_uint64,
    write_uint8,
)
from springtide.kernels.cpu.sorted_keys import interpolate, lower_bound
from springtide.kernels.cpu.table_file.blocks import (
    NOT_FOUND,
    SHORTEST,
    UNSURE,
    block_checksum,
    find_in_block,
    hash_user_key,
    may_contain,
)
from springtide.kernels.njit import njit

# the columns of a table: int64 each
FILE, SEPARATORS, OFFSETS, NUM_BLOCKS, FILTER, FILTER_LINES, FILTER_PROBES, CHECKSUM_BASE, CHECKED = range(9)
NUM_COLUMNS = 9
LATER = 3  # beside NOT_FOUND, FOUND and UNSURE: a later run may have the key
TRAILER_BYTES = 5
FIRST_STEP = 8  # of separators, from where one is guessed to be
AHEAD = 32  # keys whose blocks are asked for before their turn


@njit(nogil=True, cache=True)
def _locate(
    table_TC: Any, smallest_T: Any, largest_T: Any, runs_R1: Any, first_run: Any, key_hash: Any, hashed: Any
) -> Any:
    """The first run from `first_run` on that may have the key, the table and the block; a run of -1 if none may."""
    num_runs = len(runs_R1) - 1
    for run in range(first_run, num_runs):
        low, high = runs_R1[run], runs_R1[run + 1]
        while low < high:
            middle = (low + high) >> 1
            if largest_T[middle] < key_hash:
                low = middle + 1
            else:
                high = middle
        if low == runs_R1[run + 1] or smallest_T[low] > key_hash:
            continue
        table = low
        if run < num_runs - 1 and not may_contain(
            table_TC[table, FILTER], table_TC[table, FILTER_LINES], table_TC[table, FILTER_PROBES], hashed
        ):
            continue
        num_blocks = table_TC[table, NUM_BLOCKS]
        guess = interpolate(num_blocks, key_hash)
        block = lower_bound(table_TC[table, SEPARATORS], num_blocks, guess, key_hash, FIRST_STEP)
        if block < num_blocks:
            return run, table, block
    return -1, 0, 0


@njit(nogil=True, cache=True)
def locate_all(
    table_TC: Any,
    smallest_T: Any,
    largest_T: Any,
    runs_R1: Any,
    key_hash_U: Any,
    features_U: Any,
    first_runs_U: Any,
    starts_U: Any,
    sizes_U: Any,
) -> None:
    """Write the address and the size of the block that is read first from each first run on; a size of 0 if none is."""
    for u in range(len(key_hash_U)):
        hashed = hash_user_key(key_hash_U[u], features_U[u])
        run, table, block = _locate(table_TC, smallest_T, largest_T, runs_R1, first_runs_U[u], key_hash_U[u], hashed)
        starts_U[u] = sizes_U[u] = 0
        if run >= 0:
            offset = np.int64(read_uint32(table_TC[table, OFFSETS], block))
            starts_U[u] = table_TC[table, FILE] + offset
            sizes_U[u] = np.int64(read_uint32(table_TC[table, OFFSETS], block + 1)) - offset


@njit(nogil=True, cache=True)
def _read(table_TC: Any, largest_T: Any, table: Any, block: Any, key_hash: Any, feature: Any) -> Any:
    """Find a key in one block: NOT_FOUND, FOUND or UNSURE, the value's address and length."""
    offset = np.int64(read_uint32(table_TC[table, OFFSETS], block))
    num_bytes = np.int64(read_uint32(table_TC[table, OFFSETS], block + 1)) - offset - TRAILER_BYTES
    address = table_TC[table, FILE] + offset
    checked = table_TC[table, CHECKED]
    if read_uint8(address, num_bytes) != 0:  # compressed
        return UNSURE, np.int64(0), np.int64(0)
    if read_uint8(checked, block) == 0:
        if num_bytes < SHORTEST:
            return UNSURE, np.int64(0), np.int64(0)
        stored = np.uint64(read_uint32(address + num_bytes + 1, 0))
        if block_checksum(address, num_bytes, offset, table_TC[table, CHECKSUM_BASE]) != stored:
            return UNSURE, np.int64(0), np.int64(0)
        write_uint8(checked + block, np.uint8(1))
    kind, value, length = find_in_block(address, num_bytes, key_hash, feature)
    # another feature's key may have the same eight bytes as the separator, or as the table's last key
    if kind == NOT_FOUND and (
        read_uint64(table_TC[table, SEPARATORS], block) == key_hash or largest_T[table] == key_hash
    ):
        return UNSURE, np.int64(0), np.int64(0)
    return kind, value, length


@njit(nogil=True, cache=True)
def find_all(
    table_TC: Any,
    smallest_T: Any,
    largest_T: Any,
    runs_R1: Any,
    key_hash_U: Any,
    features_U: Any,
    first_runs_U: Any,
    one_block: Any,
    kinds_U: Any,
    values_U: Any,
    lengths_U: Any,
) -> None:
    """Find each key in the newest run from its first on that has it: NOT_FOUND, FOUND or UNSURE, its value's address
    and length.

    With `one_block` no second block of a key is read: it is LATER, and its first run the next that may have it.
    """
    num_keys = len(key_hash_U)
    run_A, table_A = np.empty(AHEAD, np.int64), np.empty(AHEAD, np.int64)
    block_A, hash_A = np.empty(AHEAD, np.int64), np.empty(AHEAD, np.uint64)
    for k in range(num_keys + AHEAD):
        slot = k % AHEAD
        u = k - AHEAD
        if u >= 0:
            run, table, block = run_A[slot], table_A[slot], block_A[slot]
            kinds_U[u] = NOT_FOUND
            while run >= 0:
                kind, value, length = _read(table_TC, largest_T, table, block, key_hash_U[u], np.int64(features_U[u]))
                if kind != NOT_FOUND:
                    kinds_U[u], values_U[u], lengths_U[u] = kind, value, length
                    break
                run, table, block = _locate(
                    table_TC, smallest_T, largest_T, runs_R1, run + 1, key_hash_U[u], hash_A[slot]
                )
                if one_block and run >= 0:
                    kinds_U[u], first_runs_U[u] = LATER, run
                    break
        if k < num_keys:
            hashed = hash_user_key(key_hash_U[k], features_U[k])
            run, table, block = _locate(
                table_TC, smallest_T, largest_T, runs_R1, first_runs_U[k], key_hash_U[k], hashed
            )
            run_A[slot], table_A[slot], block_A[slot], hash_A[slot] = run, table, block, hashed
            if run >= 0:
                start = np.int64(read_uint32(table_TC[table, OFFSETS], block))
                end = np.int64(read_uint32(table_TC[table, OFFSETS], block + 1))
                prefetch_address(table_TC[table, FILE] + end - 64)
                prefetch_address(table_TC[table, FILE] + end - 8)
                prefetch_address(table_TC[table, FILE] + start)


@njit(nogil=True, cache=True)
def copy_rows(
    addresses_M: Any, at_M: Any, key_hash_U: Any, values_UD: Any, states_US: Any, counts_U: Any, last_seen_U: Any
) -> None:
    """Copy the records at these addresses into rows; count and last-seen are stored xored with the key hash."""
    dim, state_width = values_UD.shape[1], states_US.shape[1]
    values, states = values_UD.view(np.uint32), states_US.view(np.uint32)
    for m in range(len(addresses_M)):
        if m + 4 < len(addresses_M):
            prefetch_address(addresses_M[m + 4])
            prefetch_address(addresses_M[m + 4] + 64)
        address, u = addresses_M[m], at_M[m]
        for d in range(dim):
            values[u, d] = read_uint32(address, d)
        address += 4 * dim
        for s in range(state_width):
            states[u, s] = read_uint32(address, s)
        address += 4 * state_width
        counts_U[u] = np.int64(read_uint64(address, 0) ^ key_hash_U[u])
        last_seen_U[u] = np.int64(read_uint64(address, 1) ^ key_hash_U[u])
