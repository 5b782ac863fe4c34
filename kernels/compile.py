"""Compiles the CPU kernels into Numba's cache, so that a first start is quick: `python -m kernels.compile`.

A verb compiles for the types it is called with, so a tiny table is led through all of them.
"""

import numpy as np

from kernels.backend import backend
from kernels.spec import CHANGED, Columns, Layout, Step, Store, Verbs

# gather and update are compiled for each dimension, update for each optimizer too; others compile when first used
DIMS = (8, 16, 32, 64)


def main() -> None:
    """Compile every verb once for the types it is called with."""
    verbs = backend("cpu")
    for dim in DIMS:
        place(verbs, verbs.allocate(32, 16, Layout(dim, 1)))
    remember(verbs)
    verbs.hash_texts(np.frombuffer(b"springtide", np.uint8), np.array([0, 10]))
    verbs.hash_texts(np.zeros(1, np.uint8), np.array([0, 1]))


def place(verbs: Verbs, store: Store) -> None:
    """Every verb of a table, on a batch that is larger than the table."""
    features_K, ids_K = np.zeros(64, np.uint16), np.arange(64) % 40
    unique = verbs.unique(features_K, ids_K, ids_K)
    placed = verbs.find_or_insert(store, unique.features_U, unique.ids_U, unique.mixed_U, 1, 1)
    features_N, ids_N = verbs.keys_of(store, placed.slots_U)
    verbs.create(store, placed.slots_U, features_N, ids_N, 0, 0.01)
    verbs.first_values(features_N, ids_N, store.dim, 0, 0.01)
    grads_KD = verbs.gather(store, verbs.find(store, features_N, ids_N, verbs.mix_keys(features_N, ids_N)), ids_K)
    order_K, offsets_U1 = verbs.group(unique.inverse_K, unique.occurrences_U)
    num_unique, step = len(placed.slots_U), Step("rowwise-adagrad", 0.1)
    fresh_N, _ = verbs.update(
        store, placed.slots_U, order_K, offsets_U1, grads_KD, unique.last_seen_U, step, False, 0, num_unique
    )
    verbs.clear_touched(store, fresh_N)
    columns: Columns = verbs.read(store, placed.slots_U)
    verbs.scatter(store, placed.slots_U, columns)
    verbs.set_flags(store, placed.slots_U, CHANGED)
    verbs.set_priorities(store, placed.slots_U, unique.occurrences_U)
    num_rows, horizons_F = store.num_slots + store.num_overflow, np.ones(1, np.int64)
    verbs.dead(store, placed.slots_U, features_N, horizons_F)
    verbs.expired(store, 0, num_rows, horizons_F)
    verbs.occupied(store, 0, num_rows)
    verbs.lowest(store, -1, 4, 2)
    verbs.erase(store, verbs.overflow(store, 2))
    verbs.resize(store, 64)


def remember(verbs: Verbs) -> None:
    """Every verb of the sketch and the ghosts."""
    sketch, ghosts = verbs.new_sketch(64), verbs.new_ghosts(1)
    mixed_U = np.zeros(1, np.uint64)
    verbs.sketch_add(sketch, mixed_U, np.ones(1, np.int64), 1)
    verbs.sketch_estimate(sketch, mixed_U, 1)
    verbs.ghosts_add(ghosts, mixed_U, 1)
    verbs.ghosts_count(ghosts, mixed_U, 1)


if __name__ == "__main__":
    main()
