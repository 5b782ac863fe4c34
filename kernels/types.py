"""The data that goes into and out of `Ops`: keys, rows, optimizer steps, stores; flags and constants."""

# K keys of a batch, repeated; U unique keys; N some of them; V victims; D dimension; S optimizer state width
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy.ndarray on the CPU, cupy.ndarray on CUDA
HostArray = Any  # numpy.ndarray

DIRTY = 1  # flag: changed since the last version
NEEDS_SPILL = 2  # flag: no lower tier has this value, so an eviction must write it down
SPILLED = 4  # flag: the spill has a copy of this row, possibly an older one

NO_SLOT = -1

# the score word of a slot, int64: (priority << TICK_BITS) | tick. The tick is that of the last look-up of the
# key; the priority is 0 for LRU, a count for LFU, the user's score otherwise
TICK_BITS = 40
PRIORITY_BITS = 24  # signed

SKETCH_BLOCK_BYTES = 64
# of values; neither numpy nor CuPy has bfloat16: the upper halves of float32
DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "bfloat16": np.uint16}


# calls work(start, stop) for parts that cover 0..num, in parallel or one after the other
Spread = Callable[[Callable[[int, int], None], int], None]


def run_inline(work: Callable[[int, int], None], num: int) -> None:
    """A Spread that does all the work in the calling thread."""
    work(0, num)


class UniqueKeys(NamedTuple):
    """The unique keys of a batch in the order in which they first occur."""

    features_U: Array  # uint16
    ids_U: Array  # int64
    key_hash_U: Array  # uint64
    inverse_K: Array  # int64, position of each key among the unique ones
    occurrences_U: Array  # int64
    last_seen_U: Array  # int64, milliseconds: the newest event time of each key's occurrences


class InsertResult(NamedTuple):
    """The slots of the keys of a call, and the keys that were evicted for them."""

    slots_U: Array  # int64; NO_SLOT if the overflow area was full: grow it and call again for these
    new_N: Array  # int64, positions in U of the keys without a row; their slots hold old bytes until written
    victim_slots_V: Array  # int64, the slots of the evicted keys; their rows are intact until written
    victim_features_V: Array  # uint16
    victim_ids_V: Array  # int64
    num_overflowed: int  # keys whose bucket had no room: in the overflow area, or without a slot


class RowColumns(NamedTuple):
    """Rows with all their columns, one array per column."""

    values_ND: Array  # float32, whatever the store's dtype
    states_NS: Array  # float32
    counts_N: Array  # int64
    last_seen_N: Array  # int64
    flags_N: Array  # int64


class RowLayout(NamedTuple):
    """The columns of a row."""

    dim: int
    state_width: int  # float32 numbers beside the values: the optimizer's state, then the wide columns
    dtype: str = "float32"  # or "bfloat16": for the values; states are always float32
    wide_width: int = 0  # of these, the last: numbers of the row's own that no optimizer touches

    def check(self) -> None:
        """ValueError where no store can have such rows."""
        if self.dim < 1 or not 0 <= self.wide_width <= self.state_width:
            raise ValueError(f"a row has at least one value, and its state no negative width: not {self}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {sorted(DTYPES)}, not {self.dtype!r}")


class OptimizerStep(NamedTuple):
    """The settings of an optimizer step; an optimizer ignores those it does not use."""

    name: str  # of kernels/row_optimizers.py
    lr: float
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0: gradients are not clipped
    seed: int = 0  # of the stochastic rounding to bfloat16


@dataclass
class Sketch:
    """Counters by key hash, in blocks of 64 bytes: `springtide_client.rows.admission_counts` has their layout."""

    num_blocks: int
    arrays: Any  # the backend's own
    num_bytes: int


@dataclass
class Ghosts:
    """Fingerprints of evicted keys and the tick of each eviction."""

    num: int
    arrays: Any  # the backend's own
    num_bytes: int


@dataclass
class Store:
    """The arrays of one physical table; only its backend reads them."""

    num_slots: int
    num_overflow: int
    layout: RowLayout
    arrays: tuple[Array, ...]  # the backend's own
    num_bytes: int

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def state_width(self) -> int:
        return self.layout.state_width


def priority_of(scores_N: Any, xp: Any = np) -> Any:
    """Convert a user's float32 scores to int64 priorities in the same order; NaN becomes the lowest.

    A priority is the score's sign, exponent and 15 highest mantissa bits.
    """
    bits_N = (scores_N.astype(np.float32) + np.float32(0)).view(np.int32)  # -0 becomes 0
    ordered_N = xp.where(bits_N < 0, bits_N ^ np.int32(0x7FFF_FFFF), bits_N).astype(np.int64) >> 8
    return xp.where(xp.isnan(scores_N), np.int64(-(1 << (PRIORITY_BITS - 1))), ordered_N)
