"""Fill in what samples read of the ids that the stream is remembered for: sequences, remembered fields, counters.

Servers and HotModel read rows with it; the trainer, which has compiled the reading, fills in with it too.
"""

# N samples, K values of an element, L elements that a sample reads at most, D numbers of a row, M elements
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from springtide_client.array_types import BoolArray, Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.counters import ALL_ID, Counted, Counter, numbers_of, pair_ids, read_counts
from springtide_client.encode import flatten
from springtide_client.errors import EncodeError
from springtide_client.features import Features, Ragged
from springtide_client.keys import MISSING_ID
from springtide_client.memory import Elements, Memory, gap_ids, read_rows
from springtide_client.schema import Schema, field_paths
from springtide_client.targets import parse_event_ms

MAX_TIME_MS = (1 << 48) - 1
Lookup = Callable[[UInt16Array, Int64Array], tuple[Float32Array, UInt8Array]]
# of rows (K, D), of a counter, and the times of those who read them: the counter's features, as `read_numbers`
ReadNumbers = Callable[[Float32Array, Counter, Int64Array, Int64Array | None, BoolArray], Float32Array]


def read_numbers(
    rows_KD: Float32Array,
    counter: Counter,
    event_ms_K: Int64Array,
    all_N: Int64Array | None,
    has_row_N: BoolArray,
) -> Float32Array:
    """Return the counter's features, (N, F), of samples whose rows are the first N of K; NaN for those without one.

    `all_N`: which row each reads that of everything is; None where there are no rates.
    """
    read, num = read_counts(rows_KD, counter, event_ms_K), len(has_row_N)
    own, everything = Counted(read.counts_NEH[:num], read.age_N[:num]), None
    if all_N is not None:
        everything = Counted(read.counts_NEH[all_N], read.age_N[all_N])
    numbers_NF = numbers_of(counter, own, everything)
    numbers_NF[~has_row_N] = np.nan
    return numbers_NF


def recall(
    schema: Schema,
    features: Features,
    event_ms_N: Int64Array,
    lookup: Lookup,
    read: ReadNumbers = read_numbers,
) -> Features:
    """Return the features of the whole schema, from those of records or requests and what is remembered.

    `lookup` returns rows (K, D), NaN without one, and their status, of keys. `read`: as `read_numbers`, for counters.
    """
    if not schema.remembered:
        return features
    found = [_read(schema, memory, features, event_ms_N, lookup) for memory in schema.memories]
    numbers = [_read_counter(schema, counter, features, event_ms_N, lookup, read) for counter in schema.counters]
    return with_recalled(schema, features, found, event_ms_N, numbers)


def with_recalled(
    schema: Schema,
    features: Features,
    found: Sequence[Elements],
    event_ms_N: Int64Array,
    numbers: Sequence[Float32Array] = (),
) -> Features:
    """Return the features of the whole schema; `found` has what the samples read of each of its memories.

    `numbers`: the features of each of its counters, (N, F).
    """
    categorical_NC, dense_NF = features.categorical_NC, features.dense_NF
    lists = list(features.lists)
    if any(not memory.is_sequence for memory in schema.memories):
        categorical_NC, dense_NF = categorical_NC.copy(), dense_NF.copy()
    for memory, recalled in zip(schema.memories, found, strict=True):
        if memory.is_sequence:
            lists += _sequences(memory, recalled, event_ms_N)
            continue
        name, is_known_N, newest_NK = memory.keep[0], recalled.lengths_N > 0, recalled.values_NLK[:, 0]
        if name in schema.categorical:
            column = schema.categorical.index(name)
            categorical_NC[:, column] = np.where(is_known_N, newest_NK[:, 0], MISSING_ID)
        elif name in schema.dense:
            numbers_N = newest_NK[:, 0].astype(np.uint32).view(np.float32)
            dense_NF[:, schema.dense.index(name)] = np.where(is_known_N, numbers_N, np.float32(np.nan))
        else:
            lists[schema.lists.index(name)] = _list(newest_NK)
    if numbers:
        dense_NF = np.concatenate([dense_NF, *numbers], axis=1)
    return replace(features, categorical_NC=categorical_NC, lists=tuple(lists), dense_NF=dense_NF)


def ids_of(counter: Counter, schema: Schema, features: Features) -> tuple[Int64Array, BoolArray]:
    """Return the id of each sample's row, (N), and which samples have one: of a pair neither id is missing."""
    columns = [features.categorical_NC[:, schema.categorical.index(name)] for name in counter.key]
    if not columns:
        return np.full(len(features), ALL_ID, np.int64), np.ones(len(features), np.bool_)
    has_row_N = columns[0] != MISSING_ID
    if len(columns) == 1:
        return columns[0], has_row_N
    return pair_ids(*columns), has_row_N & (columns[1] != MISSING_ID)


def times_of(schema: Schema, instances: Sequence[Mapping[str, Any]], now_ms: int) -> Int64Array:
    """Return the event time of each instance in ms: that of the schema's timestamp field, now where it has none.

    EncodeError with the index for a time that is no whole number of ms, or before 1980.
    """
    times_N, name = np.full(len(instances), now_ms, np.int64), schema.timestamp
    if name is None:
        return times_N
    paths = {field: path for field, path in field_paths(schema.recorded.names).items() if field == name}
    for index, instance in enumerate(instances):
        try:
            value = flatten(paths, instance).get(name)
            if value is not None:
                times_N[index] = min(parse_event_ms(name, value), MAX_TIME_MS)
        except EncodeError as error:
            error.index = index
            raise
    return times_N


def _read(schema: Schema, memory: Memory, features: Features, event_ms_N: Int64Array, lookup: Lookup) -> Elements:
    ids_N = features.categorical_NC[:, schema.categorical.index(memory.of)]
    at_M = np.flatnonzero(ids_N != MISSING_ID)
    found = Elements.empty(len(ids_N), memory)
    if not len(at_M):
        return found
    # an id that many samples have at one time, as the user of a request, is looked up and read once
    order_M = np.lexsort((event_ms_N[at_M], ids_N[at_M]))
    ids_M, times_M = ids_N[at_M][order_M], event_ms_N[at_M][order_M]
    is_other_id_M = np.concatenate([[True], np.diff(ids_M) != 0])
    is_other_M = is_other_id_M | np.concatenate([[True], np.diff(times_M) != 0])
    ids_U = ids_M[is_other_id_M]
    rows_UD, _ = lookup(np.full(len(ids_U), schema.memory_number(memory), np.uint16), ids_U)
    rows_UD = rows_UD[np.cumsum(is_other_id_M)[is_other_M] - 1]
    read, of_M = read_rows(rows_UD, memory, times_M[is_other_M]), np.cumsum(is_other_M) - 1
    for column, own in zip(found, read, strict=True):
        column[at_M[order_M]] = own[of_M]
    return found


def _read_counter(
    schema: Schema, counter: Counter, features: Features, event_ms_N: Int64Array, lookup: Lookup, read: ReadNumbers
) -> Float32Array:
    """Return the counter's features, (N, F)."""
    ids_N, has_row_N = ids_of(counter, schema, features)
    num = len(ids_N)
    if not num:
        return np.zeros((0, len(counter.features)), np.float32)
    ids_K, event_ms_K, all_N = ids_N, event_ms_N, None
    if counter.reads_all:  # everything is read once for a time
        times_U, at_N = np.unique(event_ms_N, return_inverse=True)
        ids_K = np.concatenate([ids_N, np.full(len(times_U), ALL_ID, np.int64)])
        event_ms_K, all_N = np.concatenate([event_ms_N, times_U]), num + at_N
    ids_U, at_K = np.unique(ids_K, return_inverse=True)
    rows_UD, _ = lookup(np.array([schema.memory_number(counter)], np.uint16), ids_U)
    return read(rows_UD[at_K, : counter.dim], counter, event_ms_K, all_N, has_row_N)


def _sequences(memory: Memory, recalled: Elements, event_ms_N: Int64Array) -> list[Ragged]:
    offsets = np.zeros(len(event_ms_N) + 1, np.int64)
    np.cumsum(recalled.lengths_N, out=offsets[1:])
    is_read_NL = np.arange(memory.last) < recalled.lengths_N[:, None]
    values_MK = recalled.values_NLK[is_read_NL]
    columns = [np.ascontiguousarray(values_MK[:, k]) for k in range(len(memory.keep))]
    if memory.has_gap:
        columns.append(gap_ids(np.repeat(event_ms_N, recalled.lengths_N) - recalled.event_ms_NL[is_read_NL]))
    return [Ragged(ids_M, offsets) for ids_M in columns]


def _list(values_NK: Int64Array) -> Ragged:
    lengths_N = values_NK[:, 0]
    offsets = np.zeros(len(lengths_N) + 1, np.int64)
    np.cumsum(lengths_N, out=offsets[1:])
    is_used_NM = np.arange(values_NK.shape[1] - 1) < lengths_N[:, None]
    return Ragged(values_NK[:, 1:][is_used_NM], offsets)
