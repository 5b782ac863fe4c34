"""What samples read of the ids that the stream is remembered for, and what they add to it, before they are learned."""

# N samples, K values of an element, U rows, L elements that a sample reads at most
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from springtide.embeddings.collection import AnyTable
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.kernels.cpu.memory_rows import NONE, VISIBLE_AFTER, MemoryBatch, MemoryRules, walk
from springtide.stream.columns import Batch
from springtide_client.array_types import BoolArray, Float32Array, Int64Array
from springtide_client.features import Features, Ragged
from springtide_client.keys import MISSING_ID
from springtide_client.memory import Elements, Memory
from springtide_client.recall import with_recalled
from springtide_client.schema import Schema
from springtide_client.signals import first_difference, hash_signals

COUNTERS = ("late", "dropped", "early")
EQUAL, UNEQUAL = "equal", "unequal"  # samples that bring the hash of what was served, by that of what they read
OF_FEATURE = "unequal:"  # and the first feature that differs
NEWEST = "newest_ms"  # the newest event time of the samples so far


def unequal_key(feature: str | None) -> str:
    """Return the name of the count of samples whose first difference is in a feature; None: it is not known."""
    return OF_FEATURE + (feature or "unknown")


def memory_table(schema: Schema, memory: Memory) -> str:
    """Return the name of the table that has a memory's rows."""
    return f"memory-{schema.memory_number(memory)}"


class Samples(NamedTuple):
    """Samples that have an id of a memory: when they happened and became known (NONE: never), and their values."""

    ids_M: Int64Array
    event_ms_M: Int64Array
    known_ms_M: Int64Array
    values_MK: Int64Array


class MemoryStep:
    """Owns what is remembered of ids, in tables of its own, which versions hold as they hold other rows.

    What a sample reads depends on event times alone: see springtide_client.memory. Where that cannot be kept, it is
    counted: `late`, elements that came after samples that should have read them; `dropped`, elements for which a row
    had no room; `early`, samples that came so late that what they should read was gone.
    """

    def __init__(self, schema: Schema, table: AnyTable) -> None:
        """`table` has the tables of the schema's memories."""
        self.schema, self.ops = schema, backend("cpu")  # where these tables are, wherever the others
        self.tables: Mapping[str, EmbeddingTable] = {
            memory.name: table.tables[memory_table(schema, memory)] for memory in schema.memories
        }
        self._rules = {memory.name: rules_of(memory) for memory in schema.memories}
        self.counts = dict.fromkeys((*COUNTERS, NEWEST, EQUAL, UNEQUAL), 0)

    @property
    def exceptions(self) -> dict[str, int]:
        """What could not be read as event times say, by reason."""
        return {name: self.counts[name] for name in COUNTERS}

    @property
    def unequal_by_feature(self) -> dict[str, int]:
        """The samples that read something else than what was served, by the first feature that differs."""
        return {key.removeprefix(OF_FEATURE): n for key, n in self.counts.items() if key.startswith(OF_FEATURE)}

    def restore(self, counts: Mapping[str, int]) -> None:
        """Go on from the counts of a version."""
        self.counts = dict.fromkeys((*COUNTERS, NEWEST, EQUAL, UNEQUAL), 0) | dict(counts)

    def longest(self, batch: Batch) -> Batch:
        """Return the batch with the longest lists that its samples may read."""
        num, lists = len(batch), list(batch.features.lists)
        for memory in self.schema.memories:
            is_list = not memory.is_sequence and memory.keep[0] in self.schema.lists
            longest = memory.num_values - 1 if is_list else memory.last
            ragged = Ragged(np.zeros(num * longest, np.int64), np.arange(num + 1) * longest)
            if is_list:
                lists[self.schema.lists.index(memory.keep[0])] = ragged
            lists += [ragged] * len(memory.features)
        return replace(batch, features=replace(batch.features, lists=tuple(lists)))

    def recall(self, batch: Batch, *, has_samples: bool) -> Batch:
        """Return the batch with what its samples read; they are remembered then. SpillError ends the process.

        `has_samples`: whether any rank has some.
        """
        found = [self._recall(memory, batch) for memory in self.schema.memories]
        if len(batch):
            self.counts[NEWEST] = max(self.counts[NEWEST], int(batch.event_ms_N.max()))
        batch = replace(batch, features=with_recalled(self.schema, batch.features, found, batch.event_ms_N))
        if batch.signals_N is not None:
            self._compare(batch.features, batch.signals_N)
        return batch

    def _compare(self, features: Features, served_N: Int64Array) -> None:
        """Count the samples that bring the hash of what was served, by whether it is that of what they read."""
        brings_N = served_N != MISSING_ID
        if not brings_N.any():
            return
        trained_N = hash_signals(self.schema, features)
        is_unequal_N = brings_N & (served_N != trained_N)
        self.counts[EQUAL] += int(np.count_nonzero(brings_N & ~is_unequal_N))
        self.counts[UNEQUAL] += int(np.count_nonzero(is_unequal_N))
        for n in np.flatnonzero(is_unequal_N).tolist():
            name = first_difference(self.schema, int(served_N[n]), int(trained_N[n]))
            self.counts[unequal_key(name)] = self.counts.get(unequal_key(name), 0) + 1

    def _recall(self, memory: Memory, batch: Batch) -> Elements:
        schema, features = self.schema, batch.features
        of_N = features.categorical_NC[:, schema.categorical.index(memory.of)]
        values_NK, is_present_N = values_of(memory, schema, features)
        known_ms_N = batch.event_ms_N + memory.delay_ms
        if memory.known == "record":  # rows of files have no time of their own
            has_time_N = batch.record_ms_N > 0
            known_ms_N = np.where(has_time_N, np.maximum(batch.record_ms_N, batch.event_ms_N), known_ms_N)
        is_added_N = is_present_N & (of_N != MISSING_ID)
        if memory.when is not None:
            is_added_N &= batch.labels_NL[:, schema.labels.index(memory.when)] > 0
        if batch.is_counted_N is not None:
            is_added_N &= batch.is_counted_N
        known_ms_N = np.where(is_added_N, known_ms_N, NONE)
        self._count_late(memory, batch.event_ms_N, known_ms_N)
        recalled, at_M = Elements.empty(len(batch), memory), np.flatnonzero(of_N != MISSING_ID)
        asked = Samples(of_N[at_M], batch.event_ms_N[at_M], known_ms_N[at_M], values_NK[at_M])
        for column, found in zip(recalled, self._walk(memory, asked), strict=True):
            column[at_M] = found
        return recalled

    def _walk(self, memory: Memory, samples: Samples) -> Elements:
        """Return what samples read, one after the other; each is remembered then, if it is to be."""
        recalled, counts_2 = Elements.empty(len(samples.ids_M), memory), np.zeros(2, np.int64)
        is_written_M = np.isin(samples.ids_M, samples.ids_M[samples.known_ms_M != NONE])
        table, number = self.tables[memory.name], self.schema.memory_number(memory)
        for chosen_M, writes in ((is_written_M, True), (~is_written_M, False)):
            at_M = np.flatnonzero(chosen_M)
            if not len(at_M):
                continue
            ids_M, event_ms_M, known_ms_M, values_MK = (np.ascontiguousarray(column[at_M]) for column in samples)
            unique = self.ops.unique(np.full(len(at_M), number, np.uint16), ids_M, event_ms_M)
            if writes:
                lookup = table.lookup_unique(unique)
                columns = table.read_rows(lookup)
                rows_UD, rows_M = columns.values_ND, lookup.unique.inverse_K
            else:
                rows_UD, _ = table.find_unique(unique._replace(inverse_K=np.arange(len(unique.ids_U))))
                rows_M = unique.inverse_K
            rows_UD[np.isnan(rows_UD[:, 0])] = 0
            given = MemoryBatch(rows_M.astype(np.int64), event_ms_M, known_ms_M, values_MK)
            _, event_ms_ML, values_MLK = Elements.empty(len(at_M), memory)
            lengths_M = walk(self._rules[memory.name], rows_UD, given, values_MLK, event_ms_ML, counts_2)
            for column, found in zip(recalled, (lengths_M, event_ms_ML, values_MLK), strict=True):
                column[at_M] = found
            if writes:
                table.write_rows(lookup, rows_UD, columns.states_NS)
                table.touch(lookup)
        self.counts["dropped"] += int(counts_2[0])
        self.counts["early"] += int(counts_2[1])
        return recalled

    def _count_late(self, memory: Memory, event_ms_N: Int64Array, known_ms_N: Int64Array) -> None:
        """Count the elements that a sample before them should have read."""
        if not len(event_ms_N):
            return
        before_N = np.maximum.accumulate(np.concatenate([[self.counts[NEWEST]], event_ms_N[:-1]])) // memory.tick_ms
        is_late_N = (known_ms_N >= 0) & (known_ms_N // memory.tick_ms + VISIBLE_AFTER <= before_N)
        self.counts["late"] += int(np.count_nonzero(is_late_N))


def rules_of(memory: Memory) -> MemoryRules:
    """Return a memory's settings as the kernel takes them."""
    return MemoryRules(
        memory.tick_ms, memory.last, memory.capacity, memory.pending_ticks, memory.ttl_ms, memory.place_of_distinct
    )


def values_of(memory: Memory, schema: Schema, features: Features) -> tuple[Int64Array, BoolArray]:
    """Return the values of samples as elements of a memory, (N, K), and which samples have any."""
    num = len(features)
    name = memory.keep[0]
    if name in schema.categorical:
        columns = [features.categorical_NC[:, schema.categorical.index(field)] for field in memory.keep]
        return np.ascontiguousarray(np.stack(columns, axis=1)), columns[0] != MISSING_ID
    if name in schema.dense:
        numbers_N: Float32Array = np.ascontiguousarray(features.dense_NF[:, schema.dense.index(name)])
        return numbers_N.view(np.uint32).astype(np.int64)[:, None], ~np.isnan(numbers_N)
    ragged = features.lists[schema.lists.index(name)]
    lengths_N = np.diff(ragged.offsets)
    values_NK = np.zeros((num, memory.num_values), np.int64)
    values_NK[:, 0] = lengths_N
    samples_M = np.repeat(np.arange(num), lengths_N)
    values_NK[samples_M, 1 + np.arange(len(samples_M)) - ragged.offsets[samples_M]] = ragged.ids_M
    return values_NK, lengths_N > 0
