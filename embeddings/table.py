"""The embedding table: rows for any id, made when first asked for, moved to lower tiers when not asked for long.

Knows no device and no file: devices are ops (kernels/ops.py), files are a Spill and a RowSource.
"""

# K keys of a batch, U unique keys, B rows of gradients, D dimension
from collections.abc import Sequence

import torch

from embeddings.current_stream import on_current_stream
from embeddings.lookup.handle import Lookup
from embeddings.lookup.prefetch import Prefetch
from embeddings.lookup.read_only import read_rows
from embeddings.memory.placement import PredictedMisses
from embeddings.parts import TableParts
from embeddings.rows import as_keys
from embeddings.torch_api import autograd
from embeddings.torch_api.autograd import LookupSlice
from kernels.types import NO_SLOT, Array


class EmbeddingTable(TableParts):
    """Rows by (feature, id): looked up, gathered, and moved by their gradients, a batch at a time.

    Keys and gradients may be arrays of the host or of the table's device; what is gathered or found is the device's.
    """

    @on_current_stream
    def advance(self, event_ms: int, num_samples: int) -> None:
        """Before a batch: event time, and samples learned so far. Moves horizons, ages counts, sweeps a little."""
        self.ttl.advance(event_ms)
        self.admission.advance(num_samples)
        self.disk_cap.advance(self.memory.present_features)

    @on_current_stream
    def prefetch(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> Prefetch:
        """Begins to recall the next batch's rows from below; neither an access nor an admission.

        To be given to the next lookup, with the same three arrays.
        """
        unique = self.ops.unique(*self.ops.put(*as_keys(features_K, ids_K, event_ms_K)))
        slots_U = self.ops.find(self.memory.store, unique.features_U, unique.ids_U, unique.mixed_U)
        there = self.ops.xp.flatnonzero(slots_U == NO_SLOT)
        told = self.ops.fetch(there, unique.features_U[there], unique.ids_U[there])
        missing = PredictedMisses(self.memory.writes, self.memory.removals, *told)
        recalled = self.lower_tiers.recall_async(missing.features_N, missing.ids_N) if len(missing.ids_N) else None
        return Prefetch(features_K, ids_K, event_ms_K, unique, missing, recalled)

    @on_current_stream
    def lookup(
        self,
        features_K: Array,
        ids_K: Array,
        event_ms_K: Array,
        *,
        scores_K: Array | None = None,
        prefetched: Prefetch | None = None,
    ) -> Lookup:
        """Every key's row, made resident and held there: 1. unique keys; 2. a slot for each; 3. recalled or created.

        scores_K: with custom eviction, what each key is worth; rows of the lowest leave first.
        """
        if (scores_K is not None) != (self.config.eviction == "custom"):
            raise ValueError('a score for every key is wanted with eviction = "custom", and only then')
        if prefetched is not None and not prefetched.matches(features_K, ids_K, event_ms_K):
            raise ValueError("these are not the keys that were prefetched: give the same arrays")
        self.eviction_sink.retry_spill()
        tick = self.memory.pin()
        try:
            if prefetched is None:
                unique, staged = self.ops.unique(*self.ops.put(*as_keys(features_K, ids_K, event_ms_K))), None
                foreseen = None
            else:
                unique, staged = prefetched.unique, prefetched.rows_if_current(self.memory.writes)
                foreseen = prefetched.missing
                self._counters["prefetched"] += len(foreseen.ids_N) if staged else 0
            unique, slots_U = self.materializer.ensure_resident(unique, staged, foreseen, scores_K)
        except BaseException:
            self.memory.release(tick)
            raise
        self._counters["keys"] += len(ids_K)
        return Lookup(self, tick=tick, erasures=self.memory.erasures, unique=unique, slots_U=slots_U)

    def gather(self, lookup: Lookup) -> Array:
        """The rows of a lookup's keys, (K, D), copied; NaN where the key was forgotten since."""
        return self.gather_slice(lookup, LookupSlice(0, len(lookup)))[0]

    @on_current_stream
    def gather_slice(self, lookup: Lookup, part: LookupSlice) -> tuple[Array, Array | None]:
        """The rows of some keys, or of bags of them; for `max` also which key of the part gave each number, else -1."""
        slots_U, inverse_K = self._current_slots(lookup), lookup.unique.inverse_K[part.start : part.stop]
        if part.offsets_B1 is None:
            out_KD = self.output_buffers.take(len(inverse_K), self.dim)
            return self.ops.gather(self.memory.store, slots_U, inverse_K, out_KD), None
        return self.ops.gather_pooled(self.memory.store, slots_U, inverse_K, part.offsets_B1, part.mode)

    def embed(self, lookup: Lookup) -> torch.Tensor:
        """The rows of a lookup's keys, (K, D); where gradients are on, its backward is `update`."""
        return autograd.embed(self, lookup, [LookupSlice(0, len(lookup))])[0]

    def embed_parts(self, lookup: Lookup, parts: Sequence[LookupSlice]) -> tuple[torch.Tensor, ...]:
        """A tensor for each part of a lookup, rows or pooled bags; the parts cover its keys in order."""
        bounds = [0, *(part.stop for part in parts)]
        if bounds[-1] != len(lookup) or [part.start for part in parts] != bounds[:-1]:
            raise ValueError(f"parts {bounds} do not cover the {len(lookup)} keys of the lookup in order")
        return autograd.embed(self, lookup, parts)

    @on_current_stream
    def update(
        self, lookup: Lookup, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None
    ) -> None:
        """Sums the gradients of each key in the order of the batch, moves its row, and releases the lookup.

        Key k takes the gradient of row bags_K[k] (none given: k) times scales_K[k] (1). Counts and last-seen move too.
        A gradient that is not finite leaves the row's value and state as they are.
        """
        slots_U, unique = self._current_slots(lookup), lookup.unique
        order_K, offsets_U1 = self.ops.group(unique.inverse_K, unique.occurrences_U)
        last_seen_U = self.cutoffs.last_seen_after_touch(self.ops, unique.features_U, unique.last_seen_U)
        settings = last_seen_U, self.optimizer.step(self.lr, self.seed), self.config.eviction == "lfu"

        def move(start: int, stop: int) -> tuple[Array, int]:
            return self.ops.update(
                self.memory.store, slots_U, order_K, offsets_U1, grads_BD, *settings, start, stop, bags_K, scales_K
            )

        for fresh_N, num_refused in self.pool.map(move, len(slots_U)):
            self._counters.add("refused_gradients", num_refused)
            if self.tracked:
                self.dirty_rows.add(fresh_N)
        lookup.release()

    @on_current_stream
    def release(self, tick: int) -> None:
        """For lookups: their rows may leave from now on."""
        self.memory.release(tick)

    def release_later(self, tick: int) -> None:
        """For lookups nobody holds any more: their rows may leave with the next call."""
        self.memory.release_later(tick)

    @on_current_stream
    def find(self, features_K: Array, ids_K: Array) -> tuple[Array, Array]:
        """The rows, (K, D), NaN where there is none, and their status, (K); creates nothing.

        0 known, 1 unknown, 2 seen but not admitted, 3 forgotten.
        """
        features_K, ids_K = self.ops.put(*as_keys(features_K, ids_K, ids_K)[:2])
        unique = self.ops.unique(features_K, ids_K, ids_K)
        return read_rows(self.ops, self.memory, self.lower_tiers, self.admission, self.cutoffs, unique)

    # inside

    def _current_slots(self, lookup: Lookup) -> Array:
        """The slots of a held lookup; NO_SLOT for keys that were forgotten since."""
        if lookup.released:
            raise ValueError("this lookup has been released (it takes one update): look the keys up again")
        if lookup.erasures == self.memory.erasures:
            return lookup.slots_U
        unique = lookup.unique
        slots_U = self.ops.find(self.memory.store, unique.features_U, unique.ids_U, unique.mixed_U)
        return self.ops.xp.where(slots_U == lookup.slots_U, slots_U, NO_SLOT)
