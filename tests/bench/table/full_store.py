"""A store in which every slot is occupied, as in a streaming table, and its keys."""

# C slots
from dataclasses import dataclass

import numpy as np

from springtide.kernels.backend import backend
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.ops import Ops
from springtide.kernels.types import RowLayout, Store
from tests.bench.workloads.keys import Int64Array, scattered_ids

FILL = 3  # keys per slot: with 48 keys per bucket of 16 slots hardly a bucket has room
CHUNK = 1 << 20


@dataclass
class FullStore:
    """One feature, number 0; ids are in the order of their slots."""

    ops: Ops
    store: Store
    ids_C: Int64Array
    slots_C: Int64Array


def fill_store(num_slots: int, *, dim: int, scale: float = 0.05) -> FullStore:
    """Fill a store by find_or_insert with eviction; rows have their first values."""
    ops = backend("cpu")
    store = ops.allocate(num_slots, WIDTH, RowLayout(dim, 1))
    for start in range(0, FILL * num_slots, CHUNK):
        ids_U = scattered_ids(start, min(start + CHUNK, FILL * num_slots))
        features_U = np.zeros(len(ids_U), np.uint16)
        tick = 1 + start // CHUNK
        # nothing is protected: a key of the same call may be evicted
        ops.find_or_insert(store, features_U, ids_U, ops.hash_keys(features_U, ids_U), tick, tick + 1)
    slots_C = ops.occupied_slots(store, 0, num_slots)
    features_C, ids_C = ops.keys_of(store, slots_C)
    if dim > 1:
        ops.create(store, slots_C, features_C, ids_C, 0, scale)
    return FullStore(ops, store, ids_C, slots_C)
