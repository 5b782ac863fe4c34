"""The tables of all ranks as one: unique keys travel to their owners, rows back, and later their gradients."""

# K keys of a batch here, U unique ones, P keys that the ranks request of one table here, B bags, T tables,
# D dimension, S state columns
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from springtide.embeddings.collection import AnyTable
from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.errors import SpillError
from springtide.embeddings.lookup.handle import JoinedLookup, LookupSlice, LookupTable, TableLookup
from springtide.embeddings.lookup.materialize import Fetch
from springtide.embeddings.policy.admission import Decision, NotAdmitted, share_rows
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.route import KeyRoute, RequestedKeys, border_blocks_of_rank
from springtide.embeddings.sharding.row_format import Precision, RowFormat
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, RowColumns, UniqueKeys
from springtide_client.rows.table_names import MAIN_TABLE, TableNames


def pooled(ops: Ops, rows_UD: Tensor, inverse_K: Tensor, part: LookupSlice) -> Tensor:
    """Return the row of each key, (K, D), or the bags of `part`, (B, D): zeros for an empty one."""
    if part.offsets_B1 is None:
        return functional.embedding(inverse_K, rows_UD)
    if len(part.offsets_B1) == 1:
        return rows_UD.new_zeros(0, rows_UD.shape[1])
    (offsets_B1,) = ops.put(part.offsets_B1)
    starts_B = ops.tensor_of(offsets_B1[:-1])
    scales_K = None if part.scales_K is None else ops.tensor_of(*ops.put(part.scales_K))
    return functional.embedding_bag(inverse_K, rows_UD, starts_B, mode=part.mode, per_sample_weights=scales_K)


@dataclass(frozen=True)
class Request:
    """A call's unique keys at their owners."""

    route: KeyRoute
    requested_T: list[RequestedKeys]  # of this rank
    fetches_T: list[Fetch | None]  # of their rows; None: not begun


class FetchedRows(NamedTuple):
    """Rows that the owners sent of this rank's unique keys; of each table here all columns of the rows requested."""

    rows_UD: Tensor  # float32
    states_US: Tensor  # the last states
    counts_U: Tensor
    columns_T: list[RowColumns]  # if the table keeps them: of the unique keys of its lookup


class ShardedLookup(JoinedLookup):
    """A lookup at the owners. `unique` has this rank's keys; `rows_UD` is a leaf whose gradient the owners will get."""

    def __init__(
        self,
        unique: UniqueKeys,
        route: KeyRoute,
        lookups_T: list[TableLookup],
        fetched: FetchedRows,
    ) -> None:
        super().__init__(unique, lookups_T)
        self.route, self.lookups_T = route, lookups_T
        self.rows_UD, self.states_US, self.counts_U, self.columns_T = fetched


class ShardedTable(LookupTable[ShardedLookup]):
    """Every rank makes the same calls in the same order, with keys of its own, which may be none; the rows of a rank's
    range are in its table, which has all other methods.
    """

    admits_together = True  # by the occurrences on all ranks; else each owner's table decides by itself

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        exchange: Exchange,
        precision: Precision,
        *,
        seed: int,
        num_states: int = 0,
        keeps_columns: bool = False,
        places_F: Array | None = None,
    ) -> None:
        """`num_states`: so many of a row's last state columns come with a lookup, and its count. `keeps_columns`: a
        lookup has all columns of the rows here, as they were; if there are states too, it has them anyway.

        `places_F`: of several tables, the place of the one that has a feature's rows.
        """
        self.tables, self.exchange, self.ops = list(tables), exchange, tables[0].ops
        self.dim, self.num_states = max(table.dim for table in tables), num_states
        self.keeps_columns = keeps_columns or num_states > 0
        self._places_F = None if places_F is None else self.ops.put(places_F)[0]
        rank_seed = seed * exchange.num_ranks + exchange.rank
        self.row_formats = [RowFormat(precision.rows, one.dim) for one in self.tables]
        self.gradient_formats = [RowFormat(precision.gradients, one.dim, seed=rank_seed) for one in self.tables]
        self.num_sent = 0  # how often numbers were sent: what stochastic rounding depends on

    @staticmethod
    def of(
        table: AnyTable, exchange: Exchange, precision: Precision, *, seed: int, num_states: int = 0
    ) -> "ShardedTable":
        """The rows that a model sees, whatever tables they are in."""
        seen, places_F = table.model_tables, None
        for one in seen.values():
            admission, (num_blocks, *_) = one.admission, table.admission.sketch_info()
            admission.border_blocks = border_blocks_of_rank(num_blocks, exchange.rank, exchange.num_ranks)
        if len(seen) > 1:
            held = {name: one.features for name, one in table.config.tables.items() if name != MAIN_TABLE}
            names = TableNames({name: features for name, features in held.items() if name in seen})
            places_F = names.places_F
        return ShardedTable(
            list(seen.values()), exchange, precision, seed=seed, num_states=num_states, places_F=places_F
        )

    def begin_fetch(self, unique: UniqueKeys) -> Request:
        """Send keys to their owners, who start to fetch their rows."""
        request = self.request(unique)
        for place, (table, requested) in enumerate(zip(self.tables, request.requested_T, strict=True)):
            with suppress(SpillError):  # which the lookup itself will report
                request.fetches_T[place] = table.begin_fetch(requested.unique)
        return request

    def lookup_unique(
        self,
        unique: UniqueKeys,
        *,
        scores_K: Array | None = None,
        fetch: Request | None = None,
        num_occurrences: int | None = None,
    ) -> ShardedLookup:
        """Make every key's row resident at its owner, pin it there, and fetch it. SpillError on all ranks if on one."""
        if fetch is None:
            request = self.request(unique, scores_K)
        elif scores_K is None and num_occurrences is None:
            request = fetch
        else:  # only the lookup knows scores, and which keys count: they travel again
            request = replace(self.request(unique, scores_K), fetches_T=fetch.fetches_T)
        decisions_T: Sequence[Decision | None] = [None] * len(self.tables)
        if self.admits_together and any(table.admission for table in self.tables):
            unique, decisions_T = self._decide(unique, request)
            request = self.request(unique, scores_K)  # the keys may be others now
        lookups_T: list[TableLookup] = []
        with self.exchange.failing_together():
            for table, requested, own_fetch, decision in zip(
                self.tables, request.requested_T, request.fetches_T, decisions_T, strict=True
            ):
                one = table.lookup_unique(
                    requested.unique,
                    scores_K=requested.scores_P,
                    fetch=own_fetch,
                    decision=decision,
                    num_occurrences=requested.num_occurrences,
                )
                lookups_T.append(one)
        return ShardedLookup(unique, request.route, lookups_T, self._fetch(unique, request.route, lookups_T))

    @on_current_stream
    def embed_slices(self, lookup: ShardedLookup, slices: Sequence[LookupSlice]) -> tuple[Tensor, ...]:
        """A tensor for each slice, (keys, D) or (bags, D) float32: see torch_api.autograd.embed_slices.

        Their gradients are those of `lookup.rows_UD`, which `update` sends.
        """
        inverse_K = self.ops.tensor_of(lookup.unique.inverse_K)
        return tuple(pooled(self.ops, lookup.rows_UD, inverse_K[part.start : part.stop], part) for part in slices)

    @on_current_stream
    def update(self, lookup: ShardedLookup, grads_UD: Tensor | None = None) -> None:
        """Send the gradients of a lookup's rows to their owners, who sum them in the order of ranks, take one step for
        each row, count every occurrence, and release the lookup. Without a gradient they only count.

        grads_UD: by default those of `lookup.rows_UD`.
        """
        if grads_UD is None:
            grads_UD, lookup.rows_UD.grad = lookup.rows_UD.grad, None
        received = self._send("gradients", lookup, torch.zeros_like(lookup.rows_UD) if grads_UD is None else grads_UD)
        for table, one, (grads_PD, _) in zip(self.tables, lookup.lookups_T, received, strict=True):
            table.update(one, self.ops.array_of(grads_PD.contiguous()))
        self._count(lookup)
        lookup.release()

    @on_current_stream
    def touch(self, lookup: ShardedLookup) -> None:
        for table, one in zip(self.tables, lookup.lookups_T, strict=True):
            table.touch(one)
        self._count(lookup)
        lookup.release()

    def _count(self, lookup: ShardedLookup) -> None:
        """Count the keys of all ranks, as each table has counted its own, by which last-seen moves on."""
        if not self.admits_together:
            return
        for table, one, num_all in zip(self.tables, lookup.lookups_T, lookup.route.occurrences_T, strict=True):
            table.last_seen_floor.add_keys(num_all - one.num_occurrences)

    @on_current_stream
    def sums(self, kind: str, lookup: ShardedLookup, values_UD: Tensor, states_US: Tensor) -> list[tuple[Array, Array]]:
        """Send what this rank would add to its rows' values and last states; return for each table the sums over ranks
        for the unique keys of its own lookup, (U, D) and (U, S).
        """
        sums = []
        received = self._send(kind, lookup, values_UD, states_US)
        for one, columns in zip(lookup.lookups_T, received, strict=True):
            places_P = self.ops.tensor_of(one.unique.inverse_K)
            num_rows = len(one.unique.ids_U)
            totals = [column.new_zeros(num_rows, column.shape[1]).index_add_(0, places_P, column) for column in columns]
            sums.append((self.ops.array_of(totals[0]), self.ops.array_of(totals[1])))
        return sums

    def _send(
        self, kind: str, lookup: ShardedLookup, values_UD: Tensor, states_US: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Send numbers to the rows' owners; return of each table those received, (P, D) and (P, S)."""
        self.num_sent += 1
        encoded = []
        for order, row_format in zip(lookup.route.order_T, self.gradient_formats, strict=True):
            encoded.append(row_format.pack(values_UD, order, states_US, self.num_sent))
        received = lookup.route.to_owners(kind, encoded)
        return [one.unpacked(bytes_PB) for one, bytes_PB in zip(self.gradient_formats, received, strict=True)]

    def request(self, unique: UniqueKeys, scores_K: Array | None = None) -> Request:
        """Send this rank's unique keys to their owners."""
        ops = self.ops
        tables_U = None if self._places_F is None else self._places_F[unique.features_U]
        route = KeyRoute.of(self.exchange, ops, unique, tables_U, len(self.tables))
        columns = self._columns_of(unique)
        if scores_K is not None:
            order_K, offsets_U1 = ops.group(unique.inverse_K, ops.count_values(unique.inverse_K, len(unique.ids_U)))
            (scores_K,) = ops.put(scores_K)
            columns.append(scores_K[order_K[offsets_U1[1:] - 1]].astype(np.float32))  # the last occurrence counts
        received_T = route.columns_to_owners("keys", [ops.tensor_of(column) for column in columns])
        requested_T = [
            self._requested([ops.array_of(column) for column in received], num_occurrences)
            for received, num_occurrences in zip(received_T, route.requested_occurrences_T, strict=True)
        ]
        return Request(route, requested_T, [None] * len(self.tables))

    def _columns_of(self, unique: UniqueKeys) -> list[Array]:
        """What travels of unique keys."""
        features_U, occurrences_U = unique.features_U.view(np.int16), unique.occurrences_U.astype(np.int32)
        return [features_U, unique.ids_U, unique.last_seen_U, occurrences_U]

    def _requested(self, columns: Sequence[Array], num_occurrences: int) -> RequestedKeys:
        """The keys whose columns have arrived, and perhaps their scores."""
        features_P, *others = columns
        return RequestedKeys.of(self.ops, [features_P.view(np.uint16), *others], num_occurrences)

    def _decide(self, unique: UniqueKeys, request: Request) -> tuple[UniqueKeys, list[Decision | None]]:
        """Replace the keys of this rank that get no row of their own by the shared keys of their features, which are
        yet to be requested: a shared row has an owner like any other. Return also what was decided here, by table.
        """
        ops, xp = self.ops, self.ops.xp
        decisions_T: list[Decision | None] = []
        refused_TP: list[Array] = []
        with self.exchange.failing_together():
            for table, requested in zip(self.tables, request.requested_T, strict=True):
                refused_V, decision = xp.zeros(len(requested.unique.ids_U), np.uint8), None
                if table.admission:
                    decision = table.decide(requested.unique)
                    refused_V[ops.put(decision.not_admitted.positions_N)[0]] = 1
                decisions_T.append(decision)
                refused_TP.append(refused_V[requested.unique.inverse_K])
        refused_U = self._answer("admission", request.route, refused_TP, len(unique.ids_U))
        refused_N = ops.fetch(xp.flatnonzero(refused_U))[0]
        if len(refused_N):
            positions_N = ops.put(refused_N)[0]
            columns = unique.features_U, unique.occurrences_U, unique.last_seen_U
            not_admitted = NotAdmitted(refused_N, *ops.fetch(*(column[positions_N] for column in columns)))
            unique, _ = share_rows(ops, unique, not_admitted)
        return unique, decisions_T

    def _answer(self, kind: str, route: KeyRoute, numbers_TP: Sequence[Array], num_keys: int) -> Array:
        """Send a number of each key requested, uint8; return those of this rank's unique keys, (U)."""
        ops, answers_U = self.ops, self.ops.xp.zeros(num_keys, np.uint8)
        columns_T = [ops.tensor_of(numbers_P).reshape(-1, 1) for numbers_P in numbers_TP]
        for order, received in zip(route.order_T, route.to_requesters(kind, columns_T), strict=True):
            answers_U[ops.array_of(order)] = ops.array_of(received)[:, 0]
        return answers_U

    def _fetch(self, unique: UniqueKeys, route: KeyRoute, lookups_T: list[TableLookup]) -> FetchedRows:
        """The rows of this rank's unique keys, narrower ones ending in zeros, and their states and counts."""
        ops, num_states = self.ops, self.num_states
        encoded, columns_T = [], []
        for table, lookup, row_format in zip(self.tables, lookups_T, self.row_formats, strict=True):
            if not self.keeps_columns:
                encoded.append(row_format.pack(ops.tensor_of(table.gather(lookup))))
                continue
            columns = table.read_rows(lookup)
            columns_T.append(columns)
            places_P, numbers_US = ops.tensor_of(lookup.unique.inverse_K), None
            if num_states:
                counts_U1 = columns.counts_N.astype(np.float32).reshape(-1, 1)
                numbers_US = ops.tensor_of(ops.xp.concatenate([columns.states_NS[:, -num_states:], counts_U1], axis=1))
            encoded.append(row_format.pack(ops.tensor_of(columns.values_ND), places_P, numbers_US))
        num_numbers = num_states + 1 if num_states else 0
        rows_UD, numbers_US1 = self._unpack(len(unique.ids_U), route, encoded, self.row_formats, num_numbers)
        rows_UD.requires_grad_(torch.is_grad_enabled())
        return FetchedRows(rows_UD, numbers_US1[:, :num_states], numbers_US1[:, -1:], columns_T)

    def _unpack(
        self,
        num_keys: int,
        route: KeyRoute,
        packed_T: Sequence[Tensor],
        formats_T: Sequence[RowFormat],
        num_numbers: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Send packed rows of the keys requested; return those of this rank's unique keys, and their other numbers."""
        received = route.to_requesters("rows", packed_T)
        rows_UD = received[0].new_empty(num_keys, self.dim, dtype=torch.float32)
        if len(self.tables) > 1:
            rows_UD.zero_()
        numbers_US = rows_UD.new_empty(num_keys, num_numbers)
        for order, row_format, bytes_NB in zip(route.order_T, formats_T, received, strict=True):
            row_format.unpack(bytes_NB, order, rows_UD, numbers_US)
        return rows_UD, numbers_US
