"""Key hashes, text hashes and first values: springtide_client.keys and initial_values for Numba, equal bit by bit."""

# U keys, D dimension, T bytes, N texts
from typing import Any

import numpy as np

from springtide.kernels.njit import njit
from springtide_client.keys import GOLDEN as GOLDEN_INT
from springtide_client.keys import MISSING_ID as MISSING_ID_INT
from springtide_client.keys import MIX_1 as MIX_1_INT
from springtide_client.keys import MIX_2 as MIX_2_INT
from springtide_client.keys import STRING_SEED as TEXT_SEED_INT
from springtide_client.keys import mix64 as mix64_of_int

GOLDEN, MIX_1, MIX_2 = np.uint64(GOLDEN_INT), np.uint64(MIX_1_INT), np.uint64(MIX_2_INT)
STRING_SEED = np.uint64(TEXT_SEED_INT)
MISSING_ID = np.int64(MISSING_ID_INT)
S27, S30, S31, S40 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(40)
MASK = 0xFFFF_FFFF_FFFF_FFFF


def mixed_seed_of(seed: int) -> np.uint64:
    """Return a seed as kernels take it."""
    return np.uint64(mix64_of_int(seed & MASK))


def first_value_constants(seed: int, scale: float) -> tuple[np.uint64, np.float32]:
    """Return the mixed seed, and what a first value's 24 bits are multiplied by."""
    return mixed_seed_of(seed), np.float32(scale * 2.0**-23)


@njit(nogil=True, cache=True)
def mix64(x: Any) -> Any:
    x = (x ^ (x >> S30)) * MIX_1
    x = (x ^ (x >> S27)) * MIX_2
    return x ^ (x >> S31)


@njit(nogil=True, cache=True)
def hash_key(feature: Any, id_: Any) -> Any:
    return mix64(np.uint64(id_) ^ (np.uint64(feature) * GOLDEN))


@njit(nogil=True, cache=True)
def hash_keys(features_U: Any, ids_U: Any) -> Any:
    key_hash_U = np.empty(len(ids_U), np.uint64)
    for u in range(len(ids_U)):
        key_hash_U[u] = hash_key(features_U[u], ids_U[u])
    return key_hash_U


@njit(nogil=True, cache=True)
def hash_tuples(ids_NK: Any) -> Any:
    """One hash for each row of ids, (N) uint64; 0 where one of them is MISSING_ID."""
    hash_N = np.zeros(len(ids_NK), np.uint64)
    for n in range(len(ids_NK)):
        state = np.uint64(ids_NK.shape[1])
        is_missing = False
        for k in range(ids_NK.shape[1]):
            is_missing = is_missing or ids_NK[n, k] == MISSING_ID
            state = mix64(state + GOLDEN ^ np.uint64(ids_NK[n, k]))
        if not is_missing:
            hash_N[n] = max(state, np.uint64(1))
    return hash_N


@njit(nogil=True, cache=True)
def hash_texts(bytes_T: Any, offsets_N1: Any) -> Any:
    ids_N = np.empty(len(offsets_N1) - 1, np.int64)
    for n in range(len(ids_N)):
        start, stop = offsets_N1[n], offsets_N1[n + 1]
        state = mix64(STRING_SEED ^ np.uint64(stop - start))
        at = start
        while at < stop:
            word = np.uint64(0)
            for b in range(min(8, stop - at)):
                word |= np.uint64(bytes_T[at + b]) << np.uint64(8 * b)
            state = mix64(state ^ word)
            at += 8
        ids_N[n] = np.int64(state)
    return ids_N


@njit(nogil=True, cache=True)
def first_value_row(row_D: Any, key_hash: Any, mixed_seed: Any, factor: Any) -> None:
    x = key_hash ^ mixed_seed
    for d in range(len(row_D)):
        x += GOLDEN
        row_D[d] = np.float32(np.int32(mix64(x) >> S40) - np.int32(1 << 23)) * factor


@njit(nogil=True, cache=True)
def initial_values(features_U: Any, ids_U: Any, dim: Any, mixed_seed: Any, factor: Any) -> Any:
    values_UD = np.empty((len(ids_U), dim), np.float32)
    for u in range(len(ids_U)):
        first_value_row(values_UD[u], hash_key(features_U[u], ids_U[u]), mixed_seed, factor)
    return values_UD
