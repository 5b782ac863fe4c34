"""What samples read of the ids that the stream is remembered for, and what they add to it, before they are learned."""

# N samples, K values of an element or reads of rows, U rows, L elements that a sample reads at most
# M some of N or K, E events, H half-lives, F features
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from springtide.app.version_log.trainer_meta import are_pairs
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.kernels.cpu import counter_rows
from springtide.kernels.cpu.counter_rows import CounterBatch, walk_counts, write_numbers
from springtide.kernels.cpu.memory_rows import NONE, VISIBLE_AFTER, MemoryBatch, MemoryRules, walk
from springtide.stream.columns import Batch
from springtide_client.array_types import BoolArray, Float32Array, Int64Array, UInt16Array
from springtide_client.counters import ALL_ID, PARTS, SHOWN, Counter, PairHalf
from springtide_client.features import Features, Ragged
from springtide_client.keys import MISSING_ID
from springtide_client.memory import Elements, Memory, Remembered
from springtide_client.recall import ids_of, with_recalled
from springtide_client.schema import Schema
from springtide_client.signals import first_difference, hash_signals

EXCEPTIONS = ("late", "dropped", "early")
EQUAL, UNEQUAL = "equal", "unequal"  # samples that bring the hash of what was served, by that of what they read
OF_FEATURE = "unequal:"  # and the first feature that differs
NEWEST = "newest_ms"  # the newest event time of the samples so far


def unequal_key(feature: str | None) -> str:
    """Return the name of the count of samples whose first difference is in a feature; None: it is not known."""
    return OF_FEATURE + (feature or "unknown")


def memory_table(schema: Schema, one: Remembered) -> str:
    """Return the name of the table that has the rows of what is remembered."""
    return f"memory-{schema.memory_number(one)}"


Given = tuple[Int64Array, Int64Array, Int64Array, Int64Array]  # row, event time, when known, values of samples


class MemorySamples(NamedTuple):
    """Samples that have a row: when they happened and became known (NONE: never), what each adds to it."""

    ids_M: Int64Array
    event_ms_M: Int64Array
    known_ms_M: Int64Array
    values_MK: Int64Array


class CountsRead(NamedTuple):
    """What samples read of a counter: decayed counts, the ticks since the newest sample (NONE), if it was gone."""

    counts_MEH: Float32Array
    age_M: Int64Array
    early_M: BoolArray

    @staticmethod
    def empty(num_samples: int, counter: Counter) -> "CountsRead":
        """Return what is read where there is nothing."""
        counts_MEH = np.zeros((num_samples, len(counter.count), len(counter.half_lives)), np.float32)
        return CountsRead(counts_MEH, np.full(num_samples, NONE, np.int64), np.zeros(num_samples, np.bool_))


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
            one.name: table.tables[memory_table(schema, one)] for one in schema.remembered
        }
        self._rules = {memory.name: rules_of(memory) for memory in schema.memories}
        self._counter_rules = {counter.name: counter_rows.rules_of(counter) for counter in schema.counters}
        self.counts = dict.fromkeys((*EXCEPTIONS, NEWEST, EQUAL, UNEQUAL), 0)

    @property
    def exceptions(self) -> dict[str, int]:
        """What could not be read as event times say, by reason."""
        return {name: self.counts[name] for name in EXCEPTIONS}

    @property
    def unequal_by_feature(self) -> dict[str, int]:
        """The samples that read something else than what was served, by the first feature that differs."""
        return {key.removeprefix(OF_FEATURE): n for key, n in self.counts.items() if key.startswith(OF_FEATURE)}

    def restore(self, counts: Mapping[str, int]) -> None:
        """Go on from the counts of a version."""
        self.counts = dict.fromkeys((*EXCEPTIONS, NEWEST, EQUAL, UNEQUAL), 0) | dict(counts)

    @staticmethod
    def max_keys(batch: Batch) -> int:
        """Return how many rows of one table a batch looks up at most: those of its ids, and that of everything."""
        return len(batch) + 1

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
        num_counted = sum(len(counter.features) for counter in self.schema.counters)
        dense_NF = np.concatenate([batch.features.dense_NF, np.zeros((num, num_counted), np.float32)], axis=1)
        return replace(batch, features=replace(batch.features, lists=tuple(lists), dense_NF=dense_NF))

    def keys_of_pairs(self, halves: Sequence[PairHalf]) -> tuple[UInt16Array, Int64Array]:
        """Return the features and ids of the rows of pairs with one of these halves, wherever they are."""
        features, ids = [np.zeros(0, np.uint16)], [np.zeros(0, np.int64)]
        for counter in self.schema.counters:
            own = [half for half in halves if half.number == self.schema.memory_number(counter)]
            if own:
                features_K, ids_K = self.tables[counter.name].keys()
                is_pair_K = are_pairs(own, features_K, ids_K)
                features.append(features_K[is_pair_K])
                ids.append(ids_K[is_pair_K])
        return np.concatenate(features), np.concatenate(ids)

    def recall(self, batch: Batch, *, has_samples: bool) -> Batch:
        """Return the batch with what its samples read; they are remembered then. SpillError ends the process.

        `has_samples`: whether any rank has some.
        """
        found = [self._recall(memory, batch) for memory in self.schema.memories]
        numbers = [self._count(counter, batch) for counter in self.schema.counters]
        if len(batch):
            self.counts[NEWEST] = max(self.counts[NEWEST], int(batch.event_ms_N.max()))
        features = with_recalled(self.schema, batch.features, found, batch.event_ms_N, numbers)
        if batch.signals_N is not None:
            self._compare(features, batch.signals_N)
        return replace(batch, features=features)

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
        is_added_N = is_present_N & (of_N != MISSING_ID)
        if memory.when is not None:
            is_added_N &= batch.labels_NL[:, schema.labels.index(memory.when)] > 0
        known_ms_N = self._known_ms(memory, batch, is_added_N)
        recalled, at_M = Elements.empty(len(batch), memory), np.flatnonzero(of_N != MISSING_ID)
        asked = MemorySamples(of_N[at_M], batch.event_ms_N[at_M], known_ms_N[at_M], values_NK[at_M])
        for column, found in zip(recalled, self._walk(memory, asked), strict=True):
            column[at_M] = found
        return recalled

    def _walk(self, memory: Memory, samples: MemorySamples) -> Elements:
        """Return what samples read, one after the other; each is remembered then, if it is to be."""
        num = len(samples.ids_M)
        recalled, counts_2 = Elements.empty(num, memory), np.zeros(2, np.int64)
        for at, rows_UD, given in self._with_rows(memory, samples):
            _, event_ms_ML, values_MLK = Elements.empty(len(given[0]), memory)
            lengths_M = walk(self._rules[memory.name], rows_UD, MemoryBatch(*given), values_MLK, event_ms_ML, counts_2)
            for column, found in zip(recalled, (lengths_M, event_ms_ML, values_MLK), strict=True):
                column[at] = found
        self.counts["dropped"] += int(counts_2[0])
        self.counts["early"] += int(counts_2[1])
        return recalled

    def _count(self, counter: Counter, batch: Batch) -> Float32Array:
        """Return the counter's features of each sample, (N, F); the samples are counted then."""
        num = len(batch)
        ids_N, has_row_N = ids_of(counter, self.schema, batch.features)
        all_ms_N = self._known_ms(counter, batch, np.ones(num, np.bool_))
        known_ms_N = np.where(has_row_N, all_ms_N, NONE)
        ids_K, has_row_K, known_ms_K = ids_N, has_row_N, known_ms_N
        event_ms_K, amounts_KE = batch.event_ms_N, amounts_of(counter, self.schema, batch)
        if counter.reads_all:
            ids_K = np.concatenate([ids_N, np.full(num, ALL_ID, np.int64)])
            has_row_K = np.concatenate([has_row_N, np.ones(num, np.bool_)])
            known_ms_K = np.concatenate([known_ms_N, all_ms_N])
            event_ms_K, amounts_KE = np.tile(event_ms_K, 2), np.tile(amounts_KE, (2, 1))
        counts_KEH, age_K, early_K = CountsRead.empty(len(ids_K), counter)
        at_M: Int64Array | slice = slice(None) if has_row_K.all() else np.flatnonzero(has_row_K)
        asked = MemorySamples(ids_K[at_M], event_ms_K[at_M], known_ms_K[at_M], amounts_KE[at_M])
        counts_KEH[at_M], age_K[at_M], early_K[at_M] = self._walk_counts(counter, asked)
        self.counts["early"] += int(np.count_nonzero(early_K.reshape(-1, max(num, 1)).any(axis=0)))
        numbers_NF = np.empty((num, len(counter.numbers)), np.float32)
        settings = counter.places_4F, counter.prior, counter.tick_ms
        write_numbers(*settings, counts_KEH, age_K, has_row_N, numbers_NF)
        return numbers_NF

    def _walk_counts(self, counter: Counter, samples: MemorySamples) -> CountsRead:
        """Return what samples read, one after the other; each is counted then, if it is to be."""
        num = len(samples.ids_M)
        read, num_dropped_1 = CountsRead.empty(num, counter), np.zeros(1, np.int64)
        for at, rows_UD, given in self._with_rows(counter, samples):
            found = read.counts_MEH[at], read.age_M[at], read.early_M[at]
            walk_counts(self._counter_rules[counter.name], rows_UD, CounterBatch(*given), *found, num_dropped_1)
            read.counts_MEH[at], read.age_M[at], read.early_M[at] = found
        self.counts["dropped"] += int(num_dropped_1[0])
        return read

    def _with_rows(
        self, one: Remembered, samples: MemorySamples
    ) -> Iterator[tuple[Int64Array | slice, Float32Array, Given]]:
        """Yield the places of some samples, their rows (U, D), and what a kernel is given of them.

        The rows are written once the next ones are asked for, unless none of the samples is to be remembered.
        """
        for at, writes in _written_first(samples):
            ids_M, event_ms_M, known_ms_M, values_MK = (np.ascontiguousarray(column[at]) for column in samples)
            with self._rows(one, ids_M, event_ms_M, writes=writes) as (rows_UD, rows_M):
                yield at, rows_UD, (rows_M, event_ms_M, known_ms_M, values_MK)

    @contextmanager
    def _rows(
        self, one: Remembered, ids_M: Int64Array, event_ms_M: Int64Array, *, writes: bool
    ) -> Iterator[tuple[Float32Array, Int64Array]]:
        """Yield the rows of these ids, (U, D), and the row of each, (M). With `writes` they are written afterwards."""
        table, number = self.tables[one.name], self.schema.memory_number(one)
        unique = self.ops.unique(np.full(len(ids_M), number, np.uint16), ids_M, event_ms_M)
        if not writes:
            rows_UD, _ = table.find_unique(unique._replace(inverse_K=np.arange(len(unique.ids_U))))
            rows_UD[np.isnan(rows_UD[:, 0])] = 0
            yield rows_UD, unique.inverse_K.astype(np.int64)
            return
        lookup = table.lookup_unique(unique)
        columns = table.read_rows(lookup)
        rows_UD = columns.values_ND
        rows_UD[np.isnan(rows_UD[:, 0])] = 0
        rows_UD += np.float32(0)  # a new row may have begun with -0
        yield rows_UD, lookup.unique.inverse_K.astype(np.int64)
        table.write_rows(lookup, rows_UD, columns.states_NS)
        table.touch(lookup)

    def _known_ms(self, one: Remembered, batch: Batch, is_added_N: BoolArray) -> Int64Array:
        """Return when samples became known, in ms; NONE for those that are not remembered. Late ones are counted."""
        known_ms_N = batch.event_ms_N + one.delay_ms
        if one.known == "record":  # rows of files have no time of their own
            has_time_N = batch.record_ms_N > 0
            known_ms_N = np.where(has_time_N, np.maximum(batch.record_ms_N, batch.event_ms_N), known_ms_N)
        if batch.is_counted_N is not None:
            is_added_N = is_added_N & batch.is_counted_N
        known_ms_N = np.where(is_added_N, known_ms_N, NONE)
        self._count_late(one, batch.event_ms_N, known_ms_N)
        return known_ms_N

    def _count_late(self, one: Remembered, event_ms_N: Int64Array, known_ms_N: Int64Array) -> None:
        """Count the elements that a sample before them should have read."""
        if not len(event_ms_N):
            return
        before_N = np.maximum.accumulate(np.concatenate([[self.counts[NEWEST]], event_ms_N[:-1]])) // one.tick_ms
        is_late_N = (known_ms_N >= 0) & (known_ms_N // one.tick_ms + VISIBLE_AFTER <= before_N)
        self.counts["late"] += int(np.count_nonzero(is_late_N))


def rules_of(memory: Memory) -> MemoryRules:
    """Return a memory's settings as the kernel takes them."""
    return MemoryRules(
        memory.tick_ms, memory.last, memory.capacity, memory.pending_ticks, memory.ttl_ms, memory.place_of_distinct
    )


def amounts_of(counter: Counter, schema: Schema, batch: Batch) -> Int64Array:
    """Return what samples add to each event of a counter, (N, E), in 256ths; labels without a value add nothing."""
    amounts_NE = np.full((len(batch), len(counter.count)), PARTS, np.int64)
    for place, event in enumerate(counter.count):
        if event != SHOWN:
            label_N = batch.labels_NL[:, schema.labels.index(event)]
            amounts_NE[:, place] = np.rint(np.fmax(label_N, 0) * PARTS)
    return amounts_NE


def _written_first(samples: MemorySamples) -> Iterator[tuple[Int64Array | slice, bool]]:
    """Yield the places of ids that are written, then of those that are only read; and whether they are written."""
    ids_K, is_added_K = samples.ids_M, samples.known_ms_M != NONE
    if is_added_K.all():  # so is every id
        if len(ids_K):
            yield slice(None), True
        return
    is_written_K = np.isin(ids_K, ids_K[is_added_K])
    for chosen_K, writes in ((is_written_K, True), (~is_written_K, False)):
        at_M = np.flatnonzero(chosen_K)
        if len(at_M):
            yield at_M, writes


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
