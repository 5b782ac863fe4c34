"""The contract of a device: the array operations an embedding table needs. kernels/cpu and kernels/cuda implement it.

A table's arrays are a `Store` that its backend allocates and nothing else looks into. A slot's number is its row's
number. Slots from `num_slots` on are the overflow area: rows of keys that found no slot in their bucket.
"""

# K keys of a batch, repeated; U unique keys; N some of them; V victims; D dimension; S optimizer state width
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from springtide.kernels.types import (
    Array,
    Ghosts,
    HostArray,
    InsertResult,
    OptimizerStep,
    RowColumns,
    RowLayout,
    Sketch,
    Spread,
    Store,
    UniqueKeys,
    run_inline,
)


class OutputBuffers(Protocol):
    """Arrays for the results of `gather`, whose memory is used again once nothing refers to it."""

    def take(self, num_keys: int, dim: int) -> Array | None:
        """An array (num_keys, dim), float32, of any content; None where a fresh one costs nothing."""
        ...

    def num_bytes(self) -> int:
        """The memory kept for reuse."""
        ...


class Ops(Protocol):
    """The operations of one device. Keys of a call are unique unless their axis is K; every op is deterministic.

    Ops marked "Late" may leave a count or a list's length on the device instead of making the host wait for it: such a
    list is padded with NO_SLOT (-1) to its longest possible length. On the CPU nothing is ever padded.
    """

    device: str  # "cpu" or "cuda"
    width: int  # slots of a bucket
    max_threads: int  # threads that may share the work of one op
    # batches to let pass before a result is read back, so that reading does not wait for the device
    readback_delay: int

    @property
    def xp(self) -> Any:
        """The module of its arrays: numpy or compatible. Use it within `on_current_stream`."""
        ...

    def on_current_stream(self) -> AbstractContextManager[object]:
        """A context in which calls of `xp` are ordered after the ops called before."""
        ...

    def put(self, *arrays: Any) -> tuple[Array, ...]:
        """Copy host arrays to the device in one transfer; arrays already there are returned as they are."""
        ...

    def upload_async(self, *arrays: HostArray) -> Callable[[], tuple[Array, ...]]:
        """Start copying host arrays to the device, in one transfer beside its other work. From any thread.

        Calling the result returns the device arrays without waiting; ops called afterwards see the copied values.
        """
        ...

    def fetch(self, *arrays: Array) -> tuple[HostArray, ...]:
        """Copy arrays to the host. Waits once, for all earlier work of the device."""
        ...

    def download_async(self, *arrays: Array) -> Callable[[], tuple[HostArray, ...]]:
        """Start copying arrays to the host, beside later work of the device. They must not be written to any more.

        Calling the result waits for that copy alone and returns the host arrays.
        """
        ...

    def array_of(self, tensor: Any) -> Array:
        """A torch tensor as an array of the device; copied, and waited for, only if it is elsewhere."""
        ...

    def tensor_of(self, array: Array) -> Any:
        """An array of the device as a torch tensor, without a copy."""
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
        """The bytes one more slot costs, index and metadata included."""
        ...

    def grow_overflow(self, store: Store, num_overflow: int) -> Store:
        """Return the store with room for more overflow rows; slots keep their numbers. Do not use the old one again."""
        ...

    def reset_overflow(self, store: Store, num_overflow: int) -> Store:
        """Return the store with an overflow area of another size. ValueError unless the area is empty."""
        ...

    def rows_without_room(self, store: Store, num_slots: int, start: int = 0, stop: int | None = None) -> Array:
        """The slots whose rows would have no room in a store of `num_slots`, ascending; overflow rows are ignored.

        In each bucket of that store all but the `width` highest by score word and key hash lose their place. `start`
        and `stop` restrict the new slots considered, in whole buckets, so that a table can be shrunk piece by piece.
        """
        ...

    def resize(self, store: Store, num_slots: int) -> Store:
        """Move all rows, overflow rows too, to a store of `num_slots`, under new numbers. Do not use the old one again.

        In place: memory grows to the larger of the two sizes; no other reference to the store's arrays may exist.
        ValueError if a row would have no room; OSError if there is no memory, and the store is unchanged.
        """
        ...

    def hash_keys(self, features_U: Array, ids_U: Array) -> Array:
        """The key hashes, uint64: springtide_client.keys.mix_keys."""
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

    def find(self, store: Store, features_U: Array, ids_U: Array, key_hash_U: Array) -> Array:
        """The slots of the keys, int64, NO_SLOT for absent keys. Changes nothing."""
        ...

    def find_or_insert(
        self,
        store: Store,
        features_U: Array,
        ids_U: Array,
        key_hash_U: Array,
        tick: int,
        protect_from: int,
        num_new: int | None = None,
    ) -> InsertResult:
        """A slot for every key. Keys found take the tick and keep their priority; inserted keys get priority 0.

        A full bucket evicts the lowest score word among its slots with a tick below `protect_from` (on a tie the lower
        key hash); if all its slots are protected, the key goes to the overflow area. All present keys are found, and
        thereby protected if tick >= protect_from, before the first is inserted. ValueError if the tick exceeds
        TICK_BITS.
        `num_new`: pass the number of keys without a row if it is known and each will find a slot. Then the result is
        Late: the victims may be padded with NO_SLOT, and num_overflowed may be an array of one.
        """
        ...

    def set_priorities(self, store: Store, slots_N: Array, priorities_N: Array) -> None:
        """Set the priorities of rows, int64, clamped to PRIORITY_BITS; their ticks stay. NO_SLOT is skipped."""
        ...

    def erase(self, store: Store, slots_N: Array) -> None:
        """Empty slots, overflow slots too."""
        ...

    def keys_of(self, store: Store, slots_N: Array) -> tuple[Array, Array]:
        """The features (uint16) and ids (int64) of the keys in the slots."""
        ...

    def counts_of(self, store: Store, slots_N: Array) -> Array:
        """How often the rows in these slots were learned from, int64; any number where the slot is NO_SLOT."""
        ...

    def gather(self, store: Store, slots_U: Array, inverse_K: Array, out: Array | None = None) -> Array:
        """The values, float32 (K, D), of slots_U[inverse_K]; NaN for NO_SLOT. Written to `out` if given.

        Reuse `out`: page faults of a fresh array cost more than copying the rows.
        """
        ...

    def gather_pooled(
        self,
        store: Store,
        slots_U: Array,
        inverse_K: Array,
        offsets_B1: Array,
        mode: str,
        scales_K: Array | None = None,
    ) -> tuple[Array, Array | None]:
        """The rows of keys offsets_B1[b]..offsets_B1[b + 1] pooled into row b, float32 (B, D), in the batch's order.

        mode: "sum", "mean" (of the keys that have a row) or "max". NO_SLOT is skipped; an empty bag gives zeros.
        With "sum" the row of key k may be multiplied by scales_K[k], float32.
        "max" also returns the position k of each maximum, int64 (B, D): the first of equals, -1 if there is none.
        """
        ...

    def read(self, store: Store, slots_N: Array, spread: Spread = run_inline) -> RowColumns:
        """Copy rows with all their columns; NaN and zeros for NO_SLOT. On the CPU `spread` divides the work."""
        ...

    def scatter(self, store: Store, slots_N: Array, columns: RowColumns) -> None:
        """Write rows with all their columns; bfloat16 values are rounded to nearest even."""
        ...

    def write_learned(self, store: Store, slots_U: Array, values_UD: Array, states_US: Array, seed: int) -> Array:
        """Write values and states that were learned outside `update`; return the slots that were not DIRTY before.

        bfloat16 rows are rounded stochastically, as by `update`, but with bits of their own. Count and last-seen stay;
        DIRTY and NEEDS_SPILL are set. NO_SLOT is skipped. Late: the slots may be padded with NO_SLOT.
        """
        ...

    def touch(
        self, store: Store, slots_U: Array, occurrences_U: Array, last_seen_U: Array, count_priority: bool
    ) -> Array:
        """Do to counts, last-seen, flags and priorities what `update` does; values and states stay.

        Return the slots that were not DIRTY before. NO_SLOT and keys without occurrences are skipped. Late: the slots
        may be padded with NO_SLOT.
        """
        ...

    def create(self, store: Store, slots_N: Array, features_N: Array, ids_N: Array, seed: int, scale: float) -> None:
        """Write initial values; state, count and last-seen are 0, the flag is NEEDS_SPILL."""
        ...

    def group(self, inverse_K: Array, occurrences_U: Array) -> tuple[Array, Array]:
        """Group occurrences by unique key: order_K and offsets_U1, int64; within a key in the order of the batch."""
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
        """Sum the gradients of the keys start..stop in the order of the batch and take one optimizer step per row.

        Occurrence k has the gradient grads_BD[bags_K[k]] * scales_K[k]: row k, and 1, where these are None; int64 and
        float32. First a sum longer than clip_norm is scaled down to it and the row is multiplied by
        1 - lr * weight_decay; then, with g the sum:
        sgd: row -= lr * g.
        adagrad (Duchi et al. 2011): s += g * g; row -= lr * g / (sqrt(s) + eps).
        rowwise-adagrad, one state per row as in FBGEMM: s += mean(g * g); row -= lr * g / (sqrt(s) + eps).
        adam (Kingma and Ba 2015), t counts this row's steps: m += (1 - beta1) * (g - m) and v += (1 - beta2) *
        (g * g - v), row -= lr * (m / (1 - beta1 ** t)) / (sqrt(v / (1 - beta2 ** t)) + eps).
        ftrl (McMahan et al. 2013): a row never updated starts from its initial value, z = -row * (beta / lr + l2) -
        sign(row) * l1; then z += g - (sqrt(n + g * g) - sqrt(n)) / lr * row; n += g * g; row = 0 where |z| <= l1,
        else (sign(z) * l1 - z) / ((beta + sqrt(n)) / lr + l2).
        bfloat16 rows are rounded stochastically, by a hash of seed, key hash, count and element.

        Adds to counts, raises last-seen, sets DIRTY and NEEDS_SPILL; with count_priority the count becomes the
        priority in the key's score word. Returns the slots that were not DIRTY before, and how many rows kept value and
        state because the gradient, or its square, was not finite. NO_SLOT and keys without occurrences are skipped.
        Ranges may run in parallel: the result does not depend on how the keys are split.
        Late: the slots may be padded with NO_SLOT, and the number may be an array of one.
        """
        ...

    def clear_dirty(self, store: Store, slots_N: Array) -> Array:
        """Clear the DIRTY flag; return the slots that had it, once each."""
        ...

    def set_flags(self, store: Store, slots_N: Array, flags: int) -> None:
        """Set flags of rows."""
        ...

    def find_expired(self, store: Store, slots_N: Array, features_N: Array, cutoffs_F: Array) -> Array:
        """The positions in N of the rows last seen before the expiry cutoff of their feature (event time, ms).

        Features from len(cutoffs_F) on have no cutoff; NO_SLOT is skipped. Late: the positions may be padded with -1.
        """
        ...

    def occupied_slots(self, store: Store, start: int, stop: int) -> Array:
        """The slots in start..stop that hold a key, overflow slots too, ascending."""
        ...

    def expired_slots(self, store: Store, start: int, stop: int, cutoffs_F: Array) -> Array:
        """The occupied slots in start..stop whose rows have expired, ascending. Late: may be padded with NO_SLOT."""
        ...

    def lowest_scores(self, store: Store, feature: int, num: int, protect_from: int) -> Array:
        """The `num` slots of this feature (-1: of any) with the lowest score words, fewer if there are not so many.

        Only slots with a tick below protect_from, ascending by score word and key hash; no overflow slots.
        """
        ...

    def overflow_slots(self, store: Store, protect_from: int) -> Array:
        """The occupied overflow slots with a tick below protect_from."""
        ...

    def new_sketch(self, num_bytes: int) -> Sketch:
        """An empty sketch in at most `num_bytes`; ValueError below one block."""
        ...

    def sketch_add(self, sketch: Sketch, key_hash_U: Array, occurrences_U: Array, age: int) -> tuple[Array, Array]:
        """Add occurrences to the keys' counters; return the estimate after each, and the changed blocks, ascending.

        A block of a lower age is first decayed (counters >>= age - its age) and takes the age. The update is
        conservative: each of a key's four counters becomes max(own, min(255, estimate + occurrences)).
        """
        ...

    def sketch_estimate(self, sketch: Sketch, key_hash_U: Array, age: int) -> Array:
        """The estimates, int64, at this age: springtide_client.rows.admission_counts.estimates. Moves nothing."""
        ...

    def sketch_read(self, sketch: Sketch, blocks_N: Array) -> Array:
        """Copy blocks: uint8 (N, 64)."""
        ...

    def sketch_write(self, sketch: Sketch, blocks_N: Array, bytes_N64: Array) -> None:
        """Overwrite blocks; ValueError for a block number outside the sketch."""
        ...

    def new_ghosts(self, num: int) -> Ghosts:
        """Room for fingerprints of `num` evicted keys, 8 bytes each; a newer one may replace an older one."""
        ...

    def ghosts_add(self, ghosts: Ghosts, key_hash_N: Array, tick: int) -> None:
        """Record that keys were evicted at this tick; ticks are compared modulo 2**32."""
        ...

    def ghosts_count(self, ghosts: Ghosts, key_hash_N: Array, since_tick: int) -> int:
        """Count the keys recorded as evicted at `since_tick` or later, and remove their records.

        Late: the number may be an array of one.
        """
        ...
