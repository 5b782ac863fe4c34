"""A router's look-ups in the event loop: those that wait together go to the servers of parts as one request each.

Only where everything is as usual. A look-up whose rows do not come soon, for whatever reason, is given back, and takes
the threads' way, which waits longer, asks again, and says what is wrong.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.lookup_batch import LookupBatch, WaitingLookup
from springtide.app.serving.parts.part_channel import PartChannel
from springtide.app.serving.parts.part_channels import PartChannels
from springtide_client.array_types import Int64Array, UInt8Array
from springtide_client.parts.part_servers import PartServers
from springtide_client.rows.hash_range import HashRange

MAX_IN_FLIGHT = 2  # batches; the next one waits, and grows
BATCH_IDS = 1_024  # of each part: more would go to a thread there
MAX_WAITING = 4_096
# a part may wait so long for a version, and a batch for all its parts
VERSION_WAIT_MS, PATIENCE_SECONDS = 100, 0.25


class _Waiting(NamedTuple):
    view: ServedView
    table: str
    lookup: WaitingLookup


class LookupBatcher:
    """For the event loop's thread alone."""

    def __init__(self, servers: PartServers, hash_range: HashRange) -> None:
        """`hash_range` is that of this process, which may be empty."""
        self.servers, self.own = servers, hash_range.number - 1
        self.channels = PartChannels(servers, MAX_IN_FLIGHT)
        self._waiting: deque[_Waiting] = deque()
        self._num_in_flight = 0
        self._is_scheduled = False
        # encryption is left to the threads
        self._is_closed = any(url.startswith("https") for url in servers.urls)

    def submit(
        self, view: ServedView, number: int, ids_N: Int64Array, on_found: Callable[[UInt8Array | None], None]
    ) -> bool:
        """Ask for rows; False where this way cannot be taken now.

        Later `on_found` hears N rows of D float32 and then N status bytes as bytes, or None: take the other way then.
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
        self.channels.close()
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
        self._batch = LookupBatch(lookups, view.own_view.tip, table, self._table.dim, len(batcher.servers))
        self._asked: dict[int, PartChannel] = {}
        self._is_over = False
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._give_up)

    def send(self) -> None:
        batcher, batch = self._batcher, self._batch
        missing = batch.missing
        is_complete = not missing
        for index in missing:
            if index == batcher.own:
                continue
            if (channel := batcher.channels.idle(index)) is None:
                is_complete = batch.refuse(index)
                continue
            self._asked[index] = channel
            path, body = batch.request_to(index, batcher.servers.range_of(index)).encode(VERSION_WAIT_MS)
            on_response = partial(self._take, index, time.perf_counter())
            channel.ask(batcher.servers.encode_post(index, path, body), batch.num_bytes_of(index), on_response)
        if batcher.own in missing:
            is_complete = batch.take_own(batcher.own, self._table.search)
        if is_complete:
            self._end()

    def _take(self, index: int, began: float, response: tuple[int, UInt8Array] | None) -> None:
        if self._is_over:
            return
        status, packed_B = response or (0, None)
        is_found = status == 200 and packed_B is not None and len(packed_B) == self._batch.num_bytes_of(index)
        outcome = "ok" if is_found else "version" if status in (410, 503) else "failed"
        self._batcher.servers.note(index, outcome, time.perf_counter() - began)
        if self._batch.take(index, packed_B) if is_found and packed_B is not None else self._batch.refuse(index):
            self._end()

    def _give_up(self) -> None:
        late = [index for index in self._batch.missing if index in self._asked and not self._asked[index].is_idle]
        self._end()
        for index in late:
            self._batcher.channels.pause(index)
            self._asked[index].close()

    def _end(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._batch.finish()
        self._batcher.ended()
