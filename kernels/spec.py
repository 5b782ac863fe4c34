"""What a device must be able to do for a table: the array ops. Its twins (kernels/cpu, kernels/cuda) obey this page.

A table's arrays are a `Store` that its backend allocates and no one else looks into. A slot's number is its row's
number. Slots from `num_slots` on are the overflow area: rows of keys that found no slot in their bucket.
"""

# K keys of a batch, repeated; U unique keys; N some of them; V victims; D dimension; S optimizer state width
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any  # numpy.ndarray on the CPU, cupy.ndarray on CUDA
HostArray = Any  # numpy.ndarray

DIRTY = 1  # flag: moved since the last cut
NEEDS_SPILL = 2  # flag: what lies below this tier would not give this value
SPILLED = 4  # flag: the spill has a copy of this row, perhaps an older one

NO_SLOT = -1

# the score word of a slot, int64: (priority << TICK_BITS) | tick. The tick is that of the last look-up that asked for
# the key; the priority is 0 for LRU, a count for LFU, the user's score otherwise
TICK_BITS = 40
PRIORITY_BITS = 24  # signed

SKETCH_BLOCK_BYTES = 64


# does work(start, stop) for parts of 0..num, at the same time or one after the other
Spread = Callable[[Callable[[int, int], None], int], None]


def run_inline(work: Callable[[int, int], None], num: int) -> None:
    """A Spread: all of it, here."""
    work(0, num)


class UniqueKeys(NamedTuple):
    """The unique keys of a batch in the order in which they first occur."""

    features_U: Array  # uint16
    ids_U: Array  # int64
    mixed_U: Array  # uint64
    inverse_K: Array  # int64, position of each key among the unique ones
    occurrences_U: Array  # int64
    last_seen_U: Array  # int64, the newest event time of each key's occurrences


class InsertResult(NamedTuple):
    """Where the keys of a call are now, and what had to go."""

    slots_U: Array  # int64; NO_SLOT where the overflow area was full: make it larger and call again for these
    new_N: Array  # int64, positions in U of the keys that had no row; their rows hold old bytes until scattered to
    victim_slots_V: Array  # int64, the slots that lost their keys; their rows are intact until then
    victim_features_V: Array  # uint16
    victim_ids_V: Array  # int64
    num_overflowed: int  # keys whose bucket had no room: new in the overflow area, or without a slot


class RowColumns(NamedTuple):
    """Rows with everything that is known of them, one array a column."""

    values_ND: Array  # float32, whatever the store's dtype
    states_NS: Array  # float32
    counts_N: Array  # int64
    last_seen_N: Array  # int64
    flags_N: Array  # int64


class RowLayout(NamedTuple):
    """What a row is made of."""

    dim: int
    state_width: int  # float32 numbers of optimizer state
    dtype: str = "float32"  # or "bfloat16": of the values; states are float32


class OptimizerStep(NamedTuple):
    """An optimizer step's settings; those that the named one has no use for are passed over."""

    name: str  # one of OPTIMIZERS
    lr: float
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0: gradients are taken as they are
    seed: int = 0  # of the stochastic rounding to bfloat16


OPTIMIZERS = ("sgd", "adagrad", "rowwise-adagrad", "adam", "ftrl")


def state_width_of(name: str, dim: int) -> int:
    """Float32 numbers of state that a row of this optimizer has: adagrad s; adam m, v, steps; ftrl z, n."""
    return {"sgd": 0, "rowwise-adagrad": 1, "adagrad": dim, "ftrl": 2 * dim, "adam": 2 * dim + 1}[name]


@dataclass
class Sketch:
    """Counters by mixed key, in blocks of 64 bytes: springtide_client.rows.sketch says how they are laid out."""

    num_blocks: int
    arrays: Any  # the backend's own
    num_bytes: int


@dataclass
class Ghosts:
    """Keys that left, by fingerprint, and when."""

    num: int
    arrays: Any  # the backend's own
    num_bytes: int


@dataclass
class Store:
    """The arrays of one physical table."""

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
    """The priorities, int64, of a user's float32 scores, in their order; not a number is the lowest.

    Sign, exponent and the 15 highest bits of the mantissa.
    """
    bits_N = (scores_N.astype(np.float32) + np.float32(0)).view(np.int32)  # -0 becomes 0
    ordered_N = xp.where(bits_N < 0, bits_N ^ np.int32(0x7FFF_FFFF), bits_N).astype(np.int64) >> 8
    return xp.where(xp.isnan(scores_N), np.int64(-(1 << (PRIORITY_BITS - 1))), ordered_N)


class OutputBuffers(Protocol):
    """Arrays for the results of `gather`, whose memory is used again once nothing refers to it."""

    def take(self, num_keys: int, dim: int) -> Array | None:
        """An array (num_keys, dim), float32, of any content; None where a fresh one costs nothing."""
        ...

    def num_bytes(self) -> int:
        """The memory kept for reuse."""
        ...


class Ops(Protocol):
    """A device. Keys of a call are unique unless their axis is K; every verb is deterministic.

    A number or a length that the host would have to wait for may be left on the device where a verb says so: a list
    is then padded, NO_SLOT (-1) fills it up to the longest length that it may have. The host's lists never are.
    """

    device: str  # "cpu" or "cuda"
    width: int  # slots of a bucket
    max_threads: int  # threads that may share the work of one op
    readback_delay: (
        int  # batches to let pass before a result is read back, so that reading does not wait for the device
    )

    @property
    def xp(self) -> Any:
        """The module of its arrays, numpy or one like it; to be used within `on_current_stream`."""
        ...

    def on_current_stream(self) -> AbstractContextManager[object]:
        """Within it, what the arrays' own module does comes after what was asked of the device before."""
        ...

    def put(self, *arrays: Any) -> tuple[Array, ...]:
        """The host's arrays on the device, in one copy; those that are there already as they are."""
        ...

    def upload_async(self, *arrays: HostArray) -> Callable[[], tuple[Array, ...]]:
        """The host's arrays on their way to the device, in one copy beside what is asked of it. From any thread.

        The call that it gives waits for nothing: what is asked of the device after it finds them there.
        """
        ...

    def fetch(self, *arrays: Array) -> tuple[HostArray, ...]:
        """The arrays on the host. Waits once, for everything asked of the device before."""
        ...

    def download_async(self, *arrays: Array) -> Callable[[], tuple[HostArray, ...]]:
        """Arrays that nobody writes to any more, copied beside what is asked of the device from now on.

        The call that it gives waits for that copy alone.
        """
        ...

    def array_of(self, tensor: Any) -> Array:
        """A torch tensor as an array of the device: not copied where it is there, waited for where it is not."""
        ...

    def tensor_of(self, array: Array) -> Any:
        """An array of the device as a torch tensor, not copied."""
        ...

    def unpadded(self, list_N: Array) -> Array:
        """A list without its padding. Waits for the device, unless lists are the host's: those are returned as is."""
        ...

    def num_padding(self, list_N: Array) -> int:
        """The number of entries of a list that may be padding; 0 for lists of the host."""
        ...

    def num_listed(self, list_N: Array) -> Any:
        """The number of entries of a list that are not padding. Late: it may be an array of one."""
        ...

    def bags_of_keys(self, offsets_B1: Array, num_keys: int) -> Array:
        """The bag, int64, of each of `num_keys` keys; bag b holds keys offsets_B1[b] to offsets_B1[b + 1]."""
        ...

    def count_values(self, values_K: Array, num: int) -> Array:
        """How often each of the values 0..num occurs, int64."""
        ...

    def new_output_buffers(self) -> OutputBuffers:
        """Memory for results of `gather`, for one thread."""
        ...

    def allocate(self, num_slots: int, num_overflow: int, layout: RowLayout) -> Store:
        """An empty store; num_slots is a multiple of `width`."""
        ...

    def slot_bytes(self, layout: RowLayout) -> int:
        """The bytes one more slot costs, everything counted."""
        ...

    def grow_overflow(self, store: Store, num_overflow: int) -> Store:
        """The same store with room for more overflow rows; slots keep their numbers. The one given is spent."""
        ...

    def reset_overflow(self, store: Store, num_overflow: int) -> Store:
        """The same store with an overflow area of another size; ValueError where it is not empty."""
        ...

    def rows_without_room(self, store: Store, num_slots: int, start: int = 0, stop: int | None = None) -> Array:
        """The slots whose rows would find no room in a store of num_slots, ascending; overflow rows are not asked.

        Of each bucket there, all but the `width` highest by score word and mixed key. Only for its slots start..stop,
        whole buckets, where given: so a table may be emptied piece by piece.
        """
        ...

    def resize(self, store: Store, num_slots: int) -> Store:
        """The same rows in num_slots, under new numbers, the overflow rows too. The store given is spent.

        In place: memory grows to the larger of the two sizes. Nobody else may hold or use the store's arrays.
        ValueError where a row would find no room; where the system has no memory, OSError, and the store is as it was.
        """
        ...

    def mix_keys(self, features_U: Array, ids_U: Array) -> Array:
        """The mixed keys, uint64: springtide_client.keys.mix_keys."""
        ...

    def hash_texts(self, bytes_T: Array, offsets_N1: Array) -> Array:
        """The ids, int64, of N texts: springtide_client.keys.hash_string of bytes_T[offsets[n]:offsets[n + 1]]."""
        ...

    def initial_values(self, features_U: Array, ids_U: Array, dim: int, seed: int, scale: float) -> Array:
        """The first rows, float32 (U, dim): springtide_client.rows.initial_values."""
        ...

    def unique(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> UniqueKeys:
        """The unique keys in order of first occurrence, how often and when each was seen."""
        ...

    def find(self, store: Store, features_U: Array, ids_U: Array, mixed_U: Array) -> Array:
        """The slots, int64, NO_SLOT where there is none. Moves nothing."""
        ...

    def find_or_insert(
        self,
        store: Store,
        features_U: Array,
        ids_U: Array,
        mixed_U: Array,
        tick: int,
        protect_from: int,
        num_new: int | None = None,
    ) -> InsertResult:
        """A slot for every key. Those found take the tick and keep their priority; those inserted get priority 0.

        A full bucket gives up the lowest score word among its slots with a tick below `protect_from` (the lower mixed
        key where words tie); where all its slots are protected, the key goes to the overflow area. All keys present
        are found, and so protected, before the first is inserted, if tick >= protect_from. ValueError unless the tick
        has TICK_BITS.
        `num_new`: how many have no row, from who knows it, and knows that each will find a slot. Then the rest is late:
        NO_SLOT may follow the victims, whose keys mean nothing there, and num_overflowed may be an array of one.
        """
        ...

    def set_priorities(self, store: Store, slots_N: Array, priorities_N: Array) -> None:
        """Gives rows priorities, int64, clamped to PRIORITY_BITS; their ticks stay. NO_SLOT is passed over."""
        ...

    def erase(self, store: Store, slots_N: Array) -> None:
        """Empties slots, overflow ones too."""
        ...

    def keys_of(self, store: Store, slots_N: Array) -> tuple[Array, Array]:
        """The features and ids that occupy the slots."""
        ...

    def gather(self, store: Store, slots_U: Array, inverse_K: Array, out: Array | None = None) -> Array:
        """The values, float32 (K, D), of slots_U[inverse_K]; NaN where the slot is NO_SLOT. Written to `out` if given.

        A fresh array costs more in page faults than the rows in it: whoever gathers often keeps one.
        """
        ...

    def gather_pooled(
        self, store: Store, slots_U: Array, inverse_K: Array, offsets_B1: Array, mode: str
    ) -> tuple[Array, Array | None]:
        """The rows of keys offsets_B1[b]..offsets_B1[b + 1] pooled into row b, float32 (B, D), in the batch's order.

        mode: "sum", "mean" (of the keys that have a row) or "max". NO_SLOT is passed over; an empty bag gives zeros.
        With "max" also the position k of each winner, int64 (B, D), the first of equals, -1 where there is none.
        """
        ...

    def read(self, store: Store, slots_N: Array, spread: Spread = run_inline) -> RowColumns:
        """The rows with all their columns, copied; on the CPU by those who share the work."""
        ...

    def scatter(self, store: Store, slots_N: Array, columns: RowColumns) -> None:
        """Writes rows with all their columns; a bfloat16 is the nearest one, the even one of two."""
        ...

    def create(self, store: Store, slots_N: Array, features_N: Array, ids_N: Array, seed: int, scale: float) -> None:
        """Writes first values; state, count and last-seen 0, NEEDS_SPILL."""
        ...

    def group(self, inverse_K: Array, occurrences_U: Array) -> tuple[Array, Array]:
        """Occurrences by unique key, int64: order_K and offsets_U1; within a key in the order of the batch."""
        ...

    def update(
        self,
        store: Store,
        slots_U: Array,
        order_K: Array,
        offsets_U1: Array,
        grads_BD: Array,
        last_seen_U: Array,
        step: OptimizerStep,
        count_priority: bool,
        start: int,
        stop: int,
        bags_K: Array | None = None,
        scales_K: Array | None = None,
    ) -> tuple[Array, int]:
        """Sums the gradients of the keys start..stop in the order of the batch and takes one optimizer step a row.

        Occurrence k has the gradient grads_BD[bags_K[k]] * scales_K[k]: row k, and 1, where these are None; int64 and
        float32. First a sum longer than clip_norm is scaled to it and the row is multiplied by
        1 - lr * weight_decay; then, with g the sum:
        sgd: row -= lr * g.
        adagrad (Duchi et al. 2011): s += g * g; row -= lr * g / (sqrt(s) + eps).
        rowwise-adagrad, one state a row as in FBGEMM: s += mean(g * g); row -= lr * g / (sqrt(s) + eps).
        adam (Kingma and Ba 2015), t counts this row's steps: m += (1 - beta1) * (g - m) and v += (1 - beta2) *
        (g * g - v), row -= lr * (m / (1 - beta1 ** t)) / (sqrt(v / (1 - beta2 ** t)) + eps).
        ftrl (McMahan et al. 2013): a row that never moved starts from its first value, z = -row * (beta / lr + l2) -
        sign(row) * l1; then z += g - (sqrt(n + g * g) - sqrt(n)) / lr * row; n += g * g; row = 0 where |z| <= l1,
        else (sign(z) * l1 - z) / ((beta + sqrt(n)) / lr + l2).
        bfloat16 rows are rounded stochastically, by a hash of seed, mixed key, count and element.

        Adds to counts, raises last-seen, sets DIRTY and NEEDS_SPILL; count_priority: the key's score word takes the
        count as its priority. Gives the slots that were not DIRTY before, and how many rows kept value and state
        because the gradient, or its square, was not finite. NO_SLOT and keys without occurrences are passed over.
        Ranges may run in parallel: the result does not depend on how the keys are split.
        Late: NO_SLOT may follow the slots, and the number may be an array of one.
        """
        ...

    def clear_dirty(self, store: Store, slots_N: Array) -> Array:
        """Those of the slots, once each, that are DIRTY; they are no longer."""
        ...

    def set_flags(self, store: Store, slots_N: Array, flags: int) -> None:
        """Sets the flags of rows."""
        ...

    def find_expired(self, store: Store, slots_N: Array, features_N: Array, cutoffs_F: Array) -> Array:
        """The positions in N of the rows last seen before the horizon of their feature.

        NO_SLOT never, and never a feature from len(cutoffs_F) on. Late: -1 may follow the positions.
        """
        ...

    def occupied_slots(self, store: Store, start: int, stop: int) -> Array:
        """The slots in start..stop that hold a key, overflow ones too, ascending."""
        ...

    def expired_slots(self, store: Store, start: int, stop: int, cutoffs_F: Array) -> Array:
        """The occupied slots in start..stop whose rows are dead, ascending. Late: NO_SLOT may follow them."""
        ...

    def lowest_scores(self, store: Store, feature: int, num: int, protect_from: int) -> Array:
        """The `num` slots of this feature (-1: of any) with the lowest score words, fewer if there are not so many.

        Only ticks below protect_from; ascending by score word and mixed key; overflow rows are not among them.
        """
        ...

    def overflow_slots(self, store: Store, protect_from: int) -> Array:
        """The occupied overflow slots with a tick below protect_from."""
        ...

    def new_sketch(self, num_bytes: int) -> Sketch:
        """A sketch of zeros, its blocks' ages too, in at most so many bytes; ValueError below one block."""
        ...

    def sketch_add(self, sketch: Sketch, mixed_U: Array, occurrences_U: Array, age: int) -> tuple[Array, Array]:
        """Adds to the keys' counters in their order; the estimates after each, and the blocks touched, ascending.

        A block of a lower age is first halved (counters >>= age - its age) and takes the age. The update is
        conservative: each of the key's four counters becomes max(own, min(255, estimate + occurrences)).
        """
        ...

    def sketch_estimate(self, sketch: Sketch, mixed_U: Array, age: int) -> Array:
        """The estimates, int64, at this age: springtide_client.rows.sketch.estimates. Moves nothing."""
        ...

    def sketch_read(self, sketch: Sketch, blocks_N: Array) -> Array:
        """The blocks' bytes, uint8 (N, 64), copied."""
        ...

    def sketch_write(self, sketch: Sketch, blocks_N: Array, bytes_N64: Array) -> None:
        """Writes blocks whole; ValueError for a block that is none of this sketch's."""
        ...

    def new_ghosts(self, num: int) -> Ghosts:
        """Room for so many keys that left, 8 bytes each; a newer one may drive out an older one."""
        ...

    def ghosts_add(self, ghosts: Ghosts, mixed_N: Array, tick: int) -> None:
        """These keys left at this tick; ticks are compared modulo 2**32."""
        ...

    def ghosts_count(self, ghosts: Ghosts, mixed_N: Array, since_tick: int) -> int:
        """How many of the keys left at since_tick or later, as far as it is remembered; those are taken out.

        Late: the number may be an array of one.
        """
        ...
