"""A router's look-ups in the event loop: those that wait together go to the servers of parts as one request each.

A batch is tried once, for PATIENCE_SECONDS. A look-up whose rows have not come by then is given back, and answered by a
thread (PartServers.post_all), which waits longer, asks again, and says what is wrong.
"""

# K keys of all look-ups, M those of one part, N ids of one look-up, J look-ups, B bytes
import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.event_loop_connections import EventLoopConnection, EventLoopConnections
from springtide.kernels.cpu.serving.key_owners import place_rows, sort_by_owner
from springtide_client.array_types import Int64Array, UInt8Array
from springtide_client.format.records import Head
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.row_request import RowRequest
from springtide_client.rows.hash_range import HashRange
from springtide_client.rows.search import RowSearch

MAX_IN_FLIGHT = 2  # batches; the next one waits, and grows
BATCH_IDS = 1_024  # of each part: more would go to a thread there
MAX_WAITING = 4_096
# a part may wait so long for a version, and a batch for all its parts
VERSION_WAIT_MS, PATIENCE_SECONDS = 100, 0.25


class WaitingLookup(NamedTuple):
    """Ids of one feature. `on_found` hears their packed rows and status, or None where they have not come."""

    number: int
    ids_N: Int64Array
    on_found: Callable[[UInt8Array | None], None]


class LookupBatch:
    """Look-ups of one table at one version, and the rows that have come for them."""

    def __init__(self, lookups: Sequence[WaitingLookup], head: Head, table: str, dim: int, num_parts: int) -> None:
        self._lookups, self._head, self._table = lookups, head, table
        self._row_bytes = 4 * dim
        lengths_J = [len(lookup.ids_N) for lookup in lookups]
        self._starts_J1 = np.zeros(len(lookups) + 1, np.int64)
        np.cumsum(lengths_J, out=self._starts_J1[1:])
        ids_K = np.concatenate([lookup.ids_N for lookup in lookups])
        numbers = [lookup.number for lookup in lookups]
        features_K = np.array(numbers[:1], np.uint16)
        if len(set(numbers)) > 1:
            features_K = np.repeat(np.array(numbers, np.uint16), lengths_J)
        self._order_K, ends_R = np.empty(len(ids_K), np.int64), np.empty(num_parts, np.int64)
        sort_by_owner(features_K, ids_K, self._order_K, ends_R)
        self._features_K = features_K if len(features_K) == 1 else features_K[self._order_K]
        self._ids_K = ids_K[self._order_K]
        self._out_B = np.empty(len(ids_K) * (self._row_bytes + 1), np.uint8)
        bounds = enumerate(pairwise([0, *ends_R.tolist()]))
        # of the parts whose rows have not come: where their keys are in the order of owners
        self._missing = {index: slice(start, end) for index, (start, end) in bounds if start < end}
        self._refused: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """The parts whose rows have not come, from 0."""
        return list(self._missing)

    def request_to(self, index: int, hash_range: HashRange) -> RowRequest:
        """Return what a part is asked."""
        at = self._missing[index]
        features_M = self._features_K if len(self._features_K) == 1 else self._features_K[at]
        return RowRequest(self._head, hash_range, self._table, False, features_M, self._ids_K[at])

    def num_bytes_of(self, index: int) -> int:
        """The length of a part's rows and status."""
        at = self._missing[index]
        return (at.stop - at.start) * (self._row_bytes + 1)

    def take(self, index: int, packed_B: UInt8Array) -> bool:
        """Take the rows of a part; True once no more are waited for."""
        place_rows(packed_B, self._order_K[self._missing.pop(index)], self._starts_J1, self._row_bytes, self._out_B)
        return len(self._refused) == len(self._missing)

    def take_own(self, index: int, search: RowSearch) -> bool:
        """Take the rows of this process's own part."""
        at = self._missing[index]
        features_M = self._features_K if len(self._features_K) == 1 else self._features_K[at]
        rows_MD, status_M = search(features_M, self._ids_K[at])
        return self.take(index, np.concatenate([rows_MD.reshape(-1).view(np.uint8), status_M]))

    def refuse(self, index: int) -> bool:
        """Give up a part whose rows will not come; True once no more are waited for."""
        self._refused.add(index)
        return len(self._refused) == len(self._missing)

    def finish(self) -> None:
        """Give each look-up its rows, or None where some of them are missing."""
        without = self._without(self._missing.values())
        starts = self._starts_J1 * (self._row_bytes + 1)
        for number, (lookup, (start, end)) in enumerate(zip(self._lookups, pairwise(starts.tolist()), strict=True)):
            lookup.on_found(None if number in without else self._out_B[start:end])

    def _without(self, missing: Iterable[slice]) -> set[int]:
        """The look-ups with keys at these places in the order of owners."""
        found: set[int] = set()
        for at in missing:
            found |= set((np.searchsorted(self._starts_J1, self._order_K[at], "right") - 1).tolist())
        return found


class _Waiting(NamedTuple):
    view: ServedView
    table: str
    lookup: WaitingLookup


class LookupBatcher:
    """For the event loop's thread alone."""

    def __init__(self, servers: PartServers, hash_range: HashRange) -> None:
        """`hash_range` is that of this process, which may be empty."""
        self.servers, self.own = servers, hash_range.number - 1
        self.connections = EventLoopConnections(servers, MAX_IN_FLIGHT)
        self._waiting: deque[_Waiting] = deque()
        self._num_in_flight = 0
        self._is_scheduled = False
        # encryption is left to the threads
        self._is_closed = any(url.startswith("https") for url in servers.urls)

    def submit(
        self, view: ServedView, number: int, ids_N: Int64Array, on_found: Callable[[UInt8Array | None], None]
    ) -> bool:
        """Ask for rows; False where a thread must.

        Later `on_found` hears N rows of D float32 and then N status bytes as bytes, or None: a thread must ask then.
        """
        if self._is_closed or len(self._waiting) >= MAX_WAITING or len(ids_N) > BATCH_IDS:
            return False
        table = view.own_view.table_of(number).name
        self._waiting.append(_Waiting(view, table, WaitingLookup(number, ids_N, on_found)))
        self._schedule()
        return True

    def close(self) -> None:
        """Close the connections; what waits is given back."""
        self._is_closed = True
        self.connections.close()
        while self._waiting:
            self._waiting.popleft().lookup.on_found(None)

    def ended(self) -> None:
        """Note that a batch has ended: the next one may go."""
        self._num_in_flight -= 1
        if self._waiting:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:  # all that arrive in this turn of the event loop go together
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._is_scheduled = False
        while self._waiting and self._num_in_flight < MAX_IN_FLIGHT:
            self._num_in_flight += 1
            _BatchInFlight(self, *self._take_alike()).send()

    def _take_alike(self) -> tuple[ServedView, str, list[WaitingLookup]]:
        """Take look-ups of one table at one version, at least one."""
        first, num_ids = self._waiting[0], 0
        lookups: list[WaitingLookup] = []
        while self._waiting:
            view, table, lookup = self._waiting[0]
            num_ids += len(lookup.ids_N)
            is_alike = table == first.table and view.own_view is first.view.own_view
            if lookups and (not is_alike or num_ids > BATCH_IDS * len(self.servers)):
                break
            lookups.append(lookup)
            self._waiting.popleft()
        return first.view, first.table, lookups


class _BatchInFlight:
    def __init__(self, batcher: LookupBatcher, view: ServedView, table: str, lookups: list[WaitingLookup]) -> None:
        self._batcher = batcher
        self._table = view.own_view.tables[table]
        self._batch = LookupBatch(lookups, view.own_view.head, table, self._table.dim, len(batcher.servers))
        self._asked: dict[int, EventLoopConnection] = {}
        self._is_over = False
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._give_up)

    def send(self) -> None:
        batcher, batch = self._batcher, self._batch
        missing = batch.missing
        is_complete = not missing
        for index in missing:
            if index == batcher.own:
                continue
            if (connection := batcher.connections.idle(index)) is None:
                is_complete = batch.refuse(index)
                continue
            self._asked[index] = connection
            path, body = batch.request_to(index, batcher.servers.range_of(index)).encode(VERSION_WAIT_MS)
            on_response = partial(self._take, index, time.perf_counter())
            connection.ask(batcher.servers.encode_post(index, path, body), batch.num_bytes_of(index), on_response)
        if batcher.own in missing:
            is_complete = batch.take_own(batcher.own, self._table.search)
        if is_complete:
            self._end()

    def _take(self, index: int, began: float, response: tuple[int, UInt8Array] | None) -> None:
        if self._is_over:
            return
        is_found = False
        if response is None:
            self._batcher.servers.note(index, "failed", began)
        else:
            status, packed_B = response
            error = self._batcher.servers.error_of(index, status, packed_B.data, began)
            is_found = error is None and len(packed_B) == self._batch.num_bytes_of(index)
        if self._batch.take(index, packed_B) if is_found else self._batch.refuse(index):
            self._end()

    def _give_up(self) -> None:
        late = [index for index in self._batch.missing if index in self._asked and not self._asked[index].is_idle]
        self._end()
        for index in late:
            self._batcher.connections.pause(index)
            self._asked[index].close()

    def _end(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._batch.finish()
        self._batcher.ended()
