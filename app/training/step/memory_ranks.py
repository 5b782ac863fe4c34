"""What samples of many ranks read of memory: each id has its row at its owner, which all ask and tell.

A value is a function of event times, so it does not matter which rank has a sample, nor in which order the owner gets
those of a step.
"""

# M samples of this rank with an id, P samples that the ranks ask this one about, E elements, K values, R ranks
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.training.step.memory_step import (
    EQUAL,
    EXCEPTIONS,
    NEWEST,
    UNEQUAL,
    CountsRead,
    MemorySamples,
    MemoryStep,
    unequal_key,
)
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.route import owners_of
from springtide.stream.columns import Batch
from springtide_client.array_types import Int64Array, UInt64Array
from springtide_client.counters import Counter
from springtide_client.keys import hash_keys
from springtide_client.memory import Elements, Memory, Remembered
from springtide_client.schema import Schema
from springtide_client.signals import recalled_features

Array = npt.NDArray[Any]
KIND = "memory"  # of the bytes that are sent


class Asked(NamedTuple):
    """What this rank asked the owners of its samples' ids, and what it is asked as an owner."""

    order_M: Int64Array  # of its samples, by owner
    send_R: list[int]
    receive_R: list[int]
    by_time_P: Int64Array  # of the samples it is asked about, by rank
    samples_P: MemorySamples  # by time

    def unsorted(self, columns: Iterable[Array]) -> list[Array]:
        """Return columns of `samples_P` in the order in which ranks asked."""
        return _placed(columns, self.by_time_P)


class RanksMemoryStep(MemoryStep):
    """A MemoryStep of one of many ranks; the counts are those of all."""

    def __init__(self, schema: Schema, table: AnyTable, exchange: Exchange) -> None:
        """`table`: of this rank."""
        super().__init__(schema, table)
        self._exchange, self._is_alone = exchange, False
        names = [unequal_key(name) for name in (*recalled_features(schema), None)]
        self._counted = (*EXCEPTIONS, EQUAL, UNEQUAL, *names)

    def recall(self, batch: Batch, *, has_samples: bool) -> Batch:
        """All ranks together, if one of them has samples; see MemoryStep."""
        self._is_alone = not has_samples
        if not has_samples:
            return super().recall(batch, has_samples=False)
        before = [self.counts.get(name, 0) for name in self._counted]
        batch = super().recall(batch, has_samples=True)
        added = [self.counts.get(name, 0) - count for name, count in zip(self._counted, before, strict=True)]
        of_ranks = np.array(self._exchange.all_gather_numbers([*added, self.counts[NEWEST]]))
        for name, count, more in zip(self._counted, before, of_ranks[:, :-1].sum(0).tolist(), strict=True):
            if count + more or name in self.counts:
                self.counts[name] = count + more
        self.counts[NEWEST] = int(of_ranks[:, -1].max())
        return batch

    def _walk(self, memory: Memory, samples: MemorySamples) -> Elements:
        if self._is_alone:
            return super()._walk(memory, samples)
        ask = self._ask(memory, samples)
        with self._exchange.failing_together():
            read_P = Elements(*ask.unsorted(super()._walk(memory, ask.samples_P)))
        # the lengths go back, then that many elements of each sample
        lengths_M = self._send(read_P.lengths_N[:, None], ask.receive_R, ask.send_R)[:, 0]
        is_read_PL = np.arange(memory.last) < read_P.lengths_N[:, None]
        elements = np.column_stack([read_P.event_ms_NL[is_read_PL], read_P.values_NLK[is_read_PL]])
        elements_E = self._send(elements, _sums(read_P.lengths_N, ask.receive_R), _sums(lengths_M, ask.send_R))
        by_owner_M = Elements(lengths_M, *Elements.empty(len(lengths_M), memory)[1:])
        is_read_ML = np.arange(memory.last) < lengths_M[:, None]
        by_owner_M.event_ms_NL[is_read_ML], by_owner_M.values_NLK[is_read_ML] = elements_E[:, 0], elements_E[:, 1:]
        return Elements(*_placed(by_owner_M, ask.order_M))

    def _walk_counts(self, counter: Counter, samples: MemorySamples) -> CountsRead:
        if self._is_alone:
            return super()._walk_counts(counter, samples)
        ask = self._ask(counter, samples)
        with self._exchange.failing_together():
            counts_PEH, age_P, early_P = ask.unsorted(super()._walk_counts(counter, ask.samples_P))
        bits_PX = counts_PEH.reshape(len(age_P), math.prod(counts_PEH.shape[1:])).view(np.int32).astype(np.int64)
        told_MX = self._send(np.column_stack([bits_PX, age_P, early_P]), ask.receive_R, ask.send_R)
        counts_MX = np.ascontiguousarray(told_MX[:, :-2].astype(np.int32)).view(np.float32)
        by_owner_M = counts_MX.reshape(-1, *counts_PEH.shape[1:]), told_MX[:, -2], told_MX[:, -1] != 0
        return CountsRead(*_placed(by_owner_M, ask.order_M))

    def _ask(self, one: Remembered, samples: MemorySamples) -> "Asked":
        """Send the owner of each id what samples have of it."""
        owners_M = owners_of(self._hashes(one, samples.ids_M), self._exchange.num_ranks)
        order_M = np.argsort(owners_M, kind="stable")
        send_R = np.bincount(owners_M, minlength=self._exchange.num_ranks).tolist()
        receive_R = [count for (count,) in self._exchange.counts(torch.tensor(send_R)[:, None])]
        columns = samples.ids_M, samples.event_ms_M, samples.known_ms_M, samples.values_MK
        told_P = self._send(np.column_stack(columns)[order_M], send_R, receive_R)
        by_time_P = np.argsort(told_P[:, 1], kind="stable")
        ids_P, event_ms_P, known_ms_P = (told_P[by_time_P, column] for column in range(3))
        samples_P = MemorySamples(ids_P, event_ms_P, known_ms_P, told_P[by_time_P, 3:])
        return Asked(order_M, send_R, receive_R, by_time_P, samples_P)

    def _hashes(self, one: Remembered, ids_M: Int64Array) -> UInt64Array:
        return hash_keys(np.full(len(ids_M), self.schema.memory_number(one), np.uint16), ids_M)

    def _send(self, rows_NX: Int64Array, send_R: list[int], receive_R: list[int]) -> Int64Array:
        """Send rows of whole numbers, those for rank 0 first; return those received."""
        rows_NX, width = np.ascontiguousarray(rows_NX, np.int64), 8 * rows_NX.shape[1]
        bytes_NB = torch.from_numpy(rows_NX.view(np.uint8).reshape(-1, width))
        received = self._exchange.rows(KIND, bytes_NB, send_R, receive_R)
        return received.numpy().view(np.int64).reshape(-1, rows_NX.shape[1])


def _placed(columns: Iterable[Array], places_N: Int64Array) -> list[Array]:
    """Return columns whose row n is put to a place."""
    placed = []
    for column in columns:
        placed.append(np.empty_like(column))
        placed[-1][places_N] = column
    return placed


def _sums(lengths_N: Int64Array, num_R: list[int]) -> list[int]:
    """Return the sum of the lengths of each rank's samples."""
    return [int(part.sum()) for part in np.split(lengths_N, np.cumsum(num_R)[:-1])]
