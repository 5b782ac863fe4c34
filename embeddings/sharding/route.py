"""The way of a call's unique keys to their owners, who see them as requests, and of what belongs to them back.

A rank owns a shard: the key hash (springtide_client.keys) is divided into contiguous ranges of equal size.
"""

# U unique keys of a call here, P keys that the ranks request of this one, N rows, T tables, R ranks, B bytes of a row
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.row_format import bytes_of, numbers_of
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, UniqueKeys
from springtide_client.keys import hash_keys


def owners_of(key_hash_U: Array, num_ranks: int) -> Array:
    """Return the rank of each key hash (U), uint64, as uint16 (U)."""
    shift = np.uint64(32)
    return (((key_hash_U >> shift) * np.uint64(num_ranks)) >> shift).astype(np.uint16)


def are_of_rank(features_N: UInt16Array, ids_N: Int64Array, rank: int, num_ranks: int) -> BoolArray:
    """Return which keys belong to a rank: shared keys of features, and crosses, like any others."""
    own_N: BoolArray = owners_of(hash_keys(features_N, ids_N), num_ranks) == rank
    return own_N


def blocks_of_rank(num_blocks: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the first and the last block of an admission sketch that keys of a rank are counted in.

    Blocks go by the key hash too (kernels/cpu/sketch.py). The block at a border may be of two ranks; there
    is none if the number of ranks divides that of blocks.
    """
    first, after = (-(-(rank_ << 32) // num_ranks) for rank_ in (rank, rank + 1))
    return first * num_blocks >> 32, (after - 1) * num_blocks >> 32


def border_blocks_of_rank(num_blocks: int, rank: int, num_ranks: int) -> tuple[int, ...]:
    """Return those of them that another rank counts keys in too."""
    own, all_ = blocks_of_rank(num_blocks, rank, num_ranks), range(num_ranks)
    others = {block for other in all_ if other != rank for block in blocks_of_rank(num_blocks, other, num_ranks)}
    return tuple(sorted(others & set(own)))


@dataclass(frozen=True)
class KeyRoute:
    """Where the unique keys of a call went, and how many the ranks requested of this one; by table."""

    exchange: Exchange
    order_T: tuple[Tensor, ...]  # of each table's keys, by owner: their places among the unique keys
    send_RT: list[list[int]]  # unique keys, by owner
    receive_RT: list[list[int]]  # keys requested, by rank
    occurrences_T: list[int]  # of all keys in the calls of all ranks
    requested_occurrences_T: list[int]  # of those that are requested of this rank

    @staticmethod
    def of(
        exchange: Exchange, ops: Ops, unique: UniqueKeys, tables_U: Array | None = None, num_tables: int = 1
    ) -> "KeyRoute":
        """Send each rank how many keys it will get. `tables_U`: the number of each key's table. All ranks.

        Waits once for the device, which counts: the host must know how much it sends.
        """
        xp, num_ranks = ops.xp, exchange.num_ranks
        parts_U = owners_of(unique.key_hash_U, num_ranks)
        assert num_tables * num_ranks < 1 << 16  # whose sort is quick
        if tables_U is not None:
            parts_U = tables_U.astype(np.uint16) * np.uint16(num_ranks) + parts_U
        order_U = xp.argsort(parts_U, kind="stable")  # by table, then by owner
        sums_U1 = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(unique.occurrences_U[order_U])])
        parts = xp.arange(num_tables * num_ranks + 1)
        starts = xp.searchsorted(parts_U[order_U].astype(np.int64), parts)
        starts, sums = ops.fetch(starts, sums_U1[starts])
        send_TR, occurrences_TR = (np.diff(one).reshape(num_tables, num_ranks) for one in (starts, sums))
        all_occurrences_TR = np.broadcast_to(occurrences_TR.sum(axis=1, keepdims=True), occurrences_TR.shape)
        counts_R3T = np.concatenate([send_TR, occurrences_TR, all_occurrences_TR]).T
        received_R3T = exchange.counts(torch.from_numpy(np.ascontiguousarray(counts_R3T)))
        received_RT, *occurrences_RT = (
            [counts[start : start + num_tables] for counts in received_R3T]
            for start in range(0, 3 * num_tables, num_tables)
        )
        requested_T, all_T = (list(map(sum, zip(*numbers_RT, strict=True))) for numbers_RT in occurrences_RT)
        order = ops.tensor_of(order_U)
        order_T = torch.split(order, send_TR.sum(axis=1).tolist()) if num_tables > 1 else (order,)
        return KeyRoute(exchange, tuple(order_T), send_TR.T.tolist(), received_RT, all_T, requested_T)

    def to_owners(self, kind: str, rows_TUB: Sequence[Tensor]) -> list[Tensor]:
        """Send rows of bytes in the order of the unique keys, of each table's keys; return those received (P, B).

        `rows_TUB`: uint8, of every table the rows of its own keys, in the order of `order_T`.
        """
        return self._exchange(kind, rows_TUB, self.send_RT, self.receive_RT)

    def to_requesters(self, kind: str, rows_TPB: Sequence[Tensor]) -> list[Tensor]:
        """Send rows of bytes for the keys that were requested; return those of this rank's keys, as `order_T`."""
        return self._exchange(kind, rows_TPB, self.receive_RT, self.send_RT)

    def columns_to_owners(self, kind: str, columns: Sequence[Tensor]) -> list[list[Tensor]]:
        """Send numbers of the unique keys, in their order; return for each table the same columns, (P) each."""
        received = self.to_owners(kind, [pack_columns(columns, order) for order in self.order_T])
        return [unpack_columns(part, [column.dtype for column in columns]) for part in received]

    def _exchange(
        self, kind: str, parts_TNB: Sequence[Tensor], send_RT: list[list[int]], receive_RT: list[list[int]]
    ) -> list[Tensor]:
        widths_T = [part.shape[1] for part in parts_TNB]
        send_R, receive_R = (
            [sum(number * width for number, width in zip(row, widths_T, strict=True)) for row in counts_RT]
            for counts_RT in (send_RT, receive_RT)
        )
        if len(parts_TNB) == 1:  # by rank already
            flat = self.exchange.rows(kind, parts_TNB[0].reshape(-1, 1), send_R, receive_R)
            return [flat.reshape(-1, widths_T[0])] if widths_T[0] else [flat.new_empty(len(flat), 0)]
        numbers_TR = [[row[t] for row in send_RT] for t in range(len(widths_T))]
        split = [torch.split(part, numbers) for part, numbers in zip(parts_TNB, numbers_TR, strict=True)]
        message = torch.cat([one.reshape(-1) for of_rank in zip(*split, strict=True) for one in of_rank])
        flat = self.exchange.rows(kind, message.reshape(-1, 1), send_R, receive_R).reshape(-1)
        sizes = [number * width for row in receive_RT for number, width in zip(row, widths_T, strict=True)]
        pieces = torch.split(flat, sizes)
        return [torch.cat(pieces[t :: len(widths_T)]).reshape(-1, width) for t, width in enumerate(widths_T)]


@dataclass(frozen=True)
class RequestedKeys:
    """Keys that the ranks request of one table, rank 0's first."""

    unique: UniqueKeys  # with how often they occur in the calls of the ranks
    num_occurrences: int
    scores_P: Array | None = None

    @staticmethod
    def of(ops: Ops, columns: Sequence[Array], num_occurrences: int) -> "RequestedKeys":
        """Columns (P) each: features, ids, event times, how often each occurs, and scores if there are any."""
        features_P, ids_P, event_ms_P, occurrences_P, *scores = columns
        unique, xp = ops.unique(features_P, ids_P, event_ms_P), ops.xp
        order_P, offsets_V1 = ops.group(unique.inverse_K, unique.occurrences_U)
        sums_P1 = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(occurrences_P[order_P].astype(np.int64))])
        occurrences_V = sums_P1[offsets_V1[1:]] - sums_P1[offsets_V1[:-1]]
        return RequestedKeys(unique._replace(occurrences_U=occurrences_V), num_occurrences, *scores)


def pack_columns(columns: Sequence[Tensor], order_N: Tensor) -> Tensor:
    """Return places order_N of several columns side by side, as bytes, uint8 (N, B)."""
    if not columns[0].is_cpu:
        return torch.cat([bytes_of(column.reshape(-1, 1)) for column in columns], dim=1)[order_N]
    record_N = np.empty(len(order_N), _record_of([column.dtype for column in columns]))
    for name, column in zip(record_N.dtype.fields or {}, columns, strict=True):
        record_N[name] = column.numpy()[order_N.numpy()]
    return torch.from_numpy(record_N.view(np.uint8)).reshape(len(record_N), record_N.itemsize)


def unpack_columns(message_PB: Tensor, dtypes: Sequence[Any]) -> list[Tensor]:
    """Return the columns that `pack_columns` put side by side, (P) each."""
    if message_PB.is_cpu:
        record_P = message_PB.contiguous().numpy().reshape(-1).view(_record_of(dtypes))
        return [torch.from_numpy(record_P[name].copy()) for name in record_P.dtype.fields or {}]
    columns, start = [], 0
    for dtype in dtypes:
        stop = start + dtype.itemsize
        columns.append(numbers_of(message_PB[:, start:stop], dtype).reshape(-1))
        start = stop
    return columns


def _record_of(dtypes: Sequence[Any]) -> Any:
    """Return the structured dtype of columns of torch's dtypes, without gaps."""
    return np.dtype([(str(place), str(dtype).removeprefix("torch.")) for place, dtype in enumerate(dtypes)])
