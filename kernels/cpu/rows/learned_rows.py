"""Rows that were learned outside `update`: values and states written back, and occurrences counted."""

# U unique keys, D dimension, S state width
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.intrinsics.simd import load, zeros
from springtide.kernels.cpu.rows.rows import (
    AHEAD,
    COUNT,
    DIRTY,
    FLAGS,
    LANES,
    LANES_U,
    LAST_SEEN,
    NEEDS_SPILL,
    SCALAR,
    U4,
    bits_of,
    copy_row,
    copy_states,
    store_rounded,
)
from springtide.kernels.cpu.rows.update import key_hash_of, set_priority
from springtide.kernels.njit import njit

LEARNED_SEED = 0x5EED_0001  # added to a table's seed, so that the optimizer's step is rounded by other bits


@njit(nogil=True, cache=True)
def copy_values(values: Any, slots_U: Any, values_UD: Any) -> None:
    """Float32 rows into their slots."""
    source, width = values_UD.reshape(-1), np.uint64(values_UD.shape[1])
    for u in range(len(slots_U)):
        if u + AHEAD < len(slots_U) and slots_U[u + AHEAD] >= 0:
            for d in range(np.uint64(0), width, np.uint64(16)):
                prefetch(values, np.uint64(slots_U[u + AHEAD]) * width + np.uint64(d))
        if slots_U[u] >= 0:
            copy_row(source, np.uint64(u) * width, values, np.uint64(slots_U[u]) * width, width)


@njit(nogil=True, cache=True)
def round_values(
    values: Any, meta: Any, buckets: Any, overflow: Any, num_slots: Any, slots_U: Any, values_UD: Any, mixed_seed: Any
) -> None:
    """Float32 rows into their slots as bfloat16, rounded by a hash of key, count and element."""
    source, width, blank = values_UD.reshape(-1), np.uint64(values_UD.shape[1]), zeros(LANES)
    words, features, features_O, ids_O = buckets.words, buckets.features, overflow.features_O, overflow.ids_O
    for u in range(len(slots_U)):
        if slots_U[u] < 0:
            continue
        slot = np.uint64(slots_U[u])
        key_hash = key_hash_of(words, features, features_O, ids_O, num_slots, slot)
        bits = bits_of(key_hash, mixed_seed, np.uint64(meta[slot, COUNT]))
        for d in range(np.uint64(0), width, LANES_U):
            at, rest = np.uint64(d), min(LANES_U, width - np.uint64(d))
            row = load(blank, source, np.uint64(u) * width + at, rest)
            store_rounded(values, slot * width + at, rest, row, at, bits)


@njit(nogil=True, cache=True)
def write_states(meta: Any, scalars: Any, states_CS: Any, wide: Any, slots_U: Any, states_US: Any) -> Any:
    """Write states, mark the rows as changed; return the slots that were not DIRTY."""
    states, states_in, records = states_CS.reshape(-1), states_US.reshape(-1), meta.reshape(-1)
    own, state_width, wide_width = np.uint64(states_CS.shape[1]), np.uint64(states_US.shape[1]), np.uint64(wide)
    has_scalar = own < state_width
    before = own - wide_width if has_scalar else own
    fresh_N, num_fresh = np.empty(len(slots_U), np.int64), 0
    for u in range(len(slots_U)):
        if u + AHEAD < len(slots_U) and slots_U[u + AHEAD] >= 0:
            ahead = np.uint64(slots_U[u + AHEAD])
            prefetch(records, ahead * U4)
            for s in range(np.uint64(0), own, np.uint64(16)):
                prefetch(states, ahead * own + np.uint64(s))
        if slots_U[u] < 0:
            continue
        slot = np.uint64(slots_U[u])
        copy_states(states_in, np.uint64(u) * state_width, states, slot * own, before, has_scalar, wide_width)
        if has_scalar:
            scalars[slot, SCALAR] = states_US[u, before]
        if meta[slot, FLAGS] & DIRTY == 0:
            fresh_N[num_fresh] = slots_U[u]
            num_fresh += 1
        meta[slot, FLAGS] |= DIRTY | NEEDS_SPILL
    return fresh_N[:num_fresh]


@njit(nogil=True, cache=True)
def touch(
    meta: Any,
    words: Any,
    scores_O: Any,
    num_slots: Any,
    slots_U: Any,
    occurrences_U: Any,
    last_seen_U: Any,
    count_priority: Any,
) -> Any:
    """Count occurrences, raise last-seen, mark the rows as changed; return the slots that were not DIRTY.

    Occurrences are negative where an update counts more of them than shall count.
    """
    fresh_N, num_fresh, records = np.empty(len(slots_U), np.int64), 0, meta.reshape(-1)
    for u in range(len(slots_U)):
        if u + AHEAD < len(slots_U) and slots_U[u + AHEAD] >= 0:
            prefetch(records, np.uint64(slots_U[u + AHEAD]) * U4)
        if slots_U[u] < 0 or occurrences_U[u] == 0:
            continue
        slot = np.uint64(slots_U[u])
        meta[slot, COUNT] += occurrences_U[u]
        meta[slot, LAST_SEEN] = max(meta[slot, LAST_SEEN], last_seen_U[u])
        if meta[slot, FLAGS] & DIRTY == 0:
            fresh_N[num_fresh] = slots_U[u]
            num_fresh += 1
        meta[slot, FLAGS] |= DIRTY | NEEDS_SPILL
        if count_priority:
            set_priority(words, scores_O, num_slots, slot, meta[slot, COUNT])
    return fresh_N[:num_fresh]
