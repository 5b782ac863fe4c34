"""The arrays behind a store on the GPU.

Keys lie by slot in arrays of their own, the digests of a bucket in one line of 128 bytes. What else is known of a row
is the CPU backend's record of 32 bytes, one sector of memory: count, last-seen, flags, and one float32 of state.
"""

# C slots and overflow rows, B buckets, O overflow rows, P places of their hash table, D dimension, S state width
import math
from typing import Any, NamedTuple, cast

import numpy as np

from springtide.kernels.cpu.store.store import num_own_states
from springtide.kernels.cuda.device import Array, Device
from springtide.kernels.types import DTYPES, RowLayout, Store

WIDTH = 128  # slots of a bucket
KEY_BYTES = 1 + 2 + 8 + 8  # digest, feature, id, score
RECORD_BYTES = 32


class KeyArrays(NamedTuple):
    """The index: what the kernels take as INDEX_PARAMETERS, in their order."""

    digests: Array  # uint8
    features: Array  # uint16
    ids: Array  # int64
    scores: Array  # int64
    elsewhere_B: Array  # uint32
    num_buckets: Any
    features_O: Array
    ids_O: Array
    scores_O: Array
    taken_O: Array  # uint32
    places_P: Array  # int32
    place_mask: Any
    num_overflow: Any


class StoreArrays(NamedTuple):
    """The arrays of a store."""

    keys: KeyArrays
    values_CD: Array
    meta: Array  # int64 (C, 4): count, last-seen, flags, and in half a word a float32
    states_CS: Array


def arrays_of(store: Store) -> StoreArrays:
    """The arrays of a store that `CudaOps` allocated."""
    return cast(StoreArrays, store.arrays)


VECTOR = 4  # numbers that the kernels load at once where rows are whole vectors


def state_stride(layout: RowLayout) -> int:
    """Numbers of a row in the array of states: rows of an optimizer's numbers begin at whole vectors."""
    own = num_own_states(layout)
    is_loaded_in_vectors = own > layout.wide_width and layout.dim % VECTOR == 0
    return -(-own // VECTOR) * VECTOR if is_loaded_in_vectors else own


def recorded_state(layout: RowLayout) -> int:
    """Which number of a row's state is in its record; `state_width` if none is."""
    own = num_own_states(layout)
    return own - layout.wide_width if own < layout.state_width else own


def slot_bytes(layout: RowLayout) -> int:
    """Everything counted; a bucket's counter of keys elsewhere is 1/32 of a byte a slot, rounded up."""
    value_bytes = np.dtype(DTYPES[layout.dtype]).itemsize * layout.dim
    return KEY_BYTES + 1 + value_bytes + RECORD_BYTES + 4 * state_stride(layout)


def num_places(num_overflow: int) -> int:
    """Return the length of the overflow area's hash table: a power of two, at least twice as many as rows."""
    return 1 << (2 * num_overflow).bit_length()


def new_overflow(device: Device, num_overflow: int) -> tuple[Any, ...]:
    """An overflow area without a key: the last seven of Keys."""
    places = num_places(num_overflow)
    return (
        device.filled(num_overflow, np.uint16, 0),
        device.filled(num_overflow, np.int64, 0),
        device.filled(num_overflow, np.int64, 0),
        device.filled(num_overflow, np.uint32, 0),
        device.filled(places, np.int32, 0xFF),
        np.uint64(places - 1),
        np.int64(num_overflow),
    )


def new_keys(device: Device, num_slots: int, overflow: tuple[Any, ...]) -> KeyArrays:
    """Empty buckets, and this overflow area."""
    return KeyArrays(
        device.filled(num_slots, np.uint8, 0),
        device.filled(num_slots, np.uint16, 0),
        device.filled(num_slots, np.int64, 0),
        device.filled(num_slots, np.int64, 0),
        device.filled(num_slots // WIDTH, np.uint32, 0),
        np.uint64(num_slots // WIDTH),
        *overflow,
    )


def row_shapes_and_dtypes(num_rows: int, layout: RowLayout) -> list[tuple[tuple[int, int], Any]]:
    """Shapes and dtypes of values, records and states."""
    return [
        ((num_rows, layout.dim), DTYPES[layout.dtype]),
        ((num_rows, RECORD_BYTES // 8), np.int64),
        ((num_rows, state_stride(layout)), np.float32),
    ]


def new_rows(device: Device, num_rows: int, layout: RowLayout) -> tuple[Array, Array, Array]:
    """Zeros: values, records and states."""
    values_CD, meta, states_CS = (device.filled(*form, 0) for form in row_shapes_and_dtypes(num_rows, layout))
    return values_CD, meta, states_CS


def store_of(keys: KeyArrays, rows: tuple[Array, Array, Array], layout: RowLayout) -> Store:
    """A store of these arrays."""
    store = Store(0, 0, layout, (), 0)
    make_array(store, keys, rows)
    return store


def make_array(store: Store, keys: KeyArrays, rows: tuple[Array, Array, Array]) -> None:
    """Gives a store its arrays."""
    store.num_slots, store.num_overflow = int(keys.num_buckets) * WIDTH, int(keys.num_overflow)
    store.arrays = StoreArrays(keys, *rows)
    arrays = [array for array in (*keys, *rows) if hasattr(array, "shape") and array.shape]
    store.num_bytes = sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)
