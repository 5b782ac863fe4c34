"""A store in which every slot is taken, and the keys in it: a streaming table is always full."""

# C slots
from dataclasses import dataclass

import numpy as np

from kernels.backend import backend
from kernels.cpu.index.buckets import WIDTH
from kernels.spec import Layout, Store, Verbs
from tests.bench.workloads.keys import Int64Array, scattered_ids

FILL = 3  # times as many keys as slots leave hardly a bucket with room: 16 slots, 48 keys on average
CHUNK = 1 << 20


@dataclass
class FullStore:
    """One feature, number 0; the ids are in the order of their slots."""

    verbs: Verbs
    store: Store
    ids_C: Int64Array
    slots_C: Int64Array


def fill_store(num_slots: int, *, dim: int, scale: float = 0.05) -> FullStore:
    """Filled through find_or_insert, evicting; rows have their first values."""
    verbs = backend("cpu")
    store = verbs.allocate(num_slots, WIDTH, Layout(dim, 1))
    for start in range(0, FILL * num_slots, CHUNK):
        ids_U = scattered_ids(start, min(start + CHUNK, FILL * num_slots))
        features_U = np.zeros(len(ids_U), np.uint16)
        tick = 1 + start // CHUNK
        # nothing is protected: a bucket may lose a key of this very call
        verbs.find_or_insert(store, features_U, ids_U, verbs.mix_keys(features_U, ids_U), tick, tick + 1)
    slots_C = verbs.occupied(store, 0, num_slots)
    features_C, ids_C = verbs.keys_of(store, slots_C)
    if dim > 1:
        verbs.create(store, slots_C, features_C, ids_C, 0, scale)
    return FullStore(verbs, store, ids_C, slots_C)
