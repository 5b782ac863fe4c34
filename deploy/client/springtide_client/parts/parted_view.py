"""A version whose rows lie on several servers: looked up and predicted from as if it were whole."""

# K keys, M some of them, D dimension, W width of the states
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.format.records import Head
from springtide_client.model.view import View
from springtide_client.model.view_table import ViewTable
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.row_request import MAX_KEYS, FoundColumns, RowRequest
from springtide_client.rows.hash_range import HashRange, KeySplit, split_by_owner
from springtide_client.rows.search import FoundStates, LayerStack, RowSearch

# how long a part may take to reach a version that this process serves already
WAIT_MS = 500
# how long servers may take to agree on a version, and the pause before they are asked again
AGREE_SECONDS, RETRY_SECONDS = 3.0, 0.02

Result = TypeVar("Result")


class PartedSearch:
    """A RowSearch over one table at one version: it finds rows of the own range here, and asks for the others.

    Thread-safe.

    PartError where a part does not answer, VersionsDifferError where it does not serve the version.
    """

    def __init__(
        self,
        own: RowSearch,
        hash_range: HashRange,
        servers: PartServers,
        *,
        head: Head,
        table: str,
        dim: int,
        state_width: int,
        split: KeySplit = split_by_owner,
    ) -> None:
        """`own` searches the rows of `hash_range`, which may be empty."""
        self._own, self._hash_range, self._servers = own, hash_range, servers
        self._split = split
        self._head, self._table, self.dim, self._state_width = head, table, dim, state_width

    def __call__(self, features_K: UInt16Array, ids_K: Int64Array) -> tuple[Float32Array, UInt8Array]:
        packed = self.packed(features_K, ids_K)
        num_keys, num_bytes = len(ids_K), 4 * self.dim * len(ids_K)
        return packed[:num_bytes].view(np.float32).reshape(num_keys, self.dim), packed[num_bytes:]

    def packed(self, features_K: UInt16Array, ids_K: Int64Array) -> UInt8Array:
        """Look up into one array of bytes: K rows of D float32, then K status bytes."""
        num_keys, num_bytes = len(ids_K), 4 * self.dim * len(ids_K)
        out = np.empty(num_bytes + num_keys, np.uint8)
        rows_KD = out[:num_bytes].view(np.float32).reshape(num_keys, self.dim)
        self._find(features_K, ids_K, FoundColumns(rows_KD, out[num_bytes:]))
        return out

    def with_states(self, features_K: UInt16Array, ids_K: Int64Array) -> FoundStates:
        num_keys = len(ids_K)
        rows_KD, status_K = np.empty((num_keys, self.dim), np.float32), np.empty(num_keys, np.uint8)
        states_KW, counts_K = np.empty((num_keys, self._state_width), np.float32), np.empty(num_keys, np.int64)
        self._find(features_K, ids_K, FoundColumns(rows_KD, status_K, states_KW, counts_K))
        return FoundStates(rows_KD, status_K, states_KW, counts_K)

    def _find(self, features_K: UInt16Array, ids_K: Int64Array, into: FoundColumns) -> None:
        keys_of = self._split(features_K, ids_K, len(self._servers))
        own_M = keys_of.pop(self._hash_range.number - 1, None)
        with_states = into.states_KW is not None

        def find_own() -> None:
            nonlocal own_M
            if own_M is not None:
                self._find_own(features_K, ids_K, own_M, into)
            own_M = None

        while keys_of:  # at most MAX_KEYS of each part at a time
            asked = {index: at_M[:MAX_KEYS] for index, at_M in keys_of.items()}
            requests = {
                index: self._request(index, features_K, ids_K, at_M, with_states).encode(WAIT_MS)
                for index, at_M in asked.items()
            }
            for index, body in self._servers.post_all(requests, find_own).items():
                if len(body) != into.num_bytes(len(asked[index])):
                    name = self._servers.name_of(index)
                    raise PartError(
                        f"{name} sent {len(body)} bytes for {len(asked[index])} rows: is it the same log's?"
                    )
                into.fill(asked[index], body)
            keys_of = {index: at_M[MAX_KEYS:] for index, at_M in keys_of.items() if len(at_M) > MAX_KEYS}
        find_own()

    def _request(
        self, index: int, features_K: UInt16Array, ids_K: Int64Array, at_M: Int64Array, with_states: bool
    ) -> RowRequest:
        features_M = features_K if len(features_K) == 1 else features_K[at_M]
        return RowRequest(self._head, self._servers.range_of(index), self._table, with_states, features_M, ids_K[at_M])

    def _find_own(self, features_K: UInt16Array, ids_K: Int64Array, at_M: Int64Array, into: FoundColumns) -> None:
        features_M = features_K if len(features_K) == 1 else features_K[at_M]
        if into.states_KW is None or into.counts_K is None:
            into.rows_KD[at_M], into.status_K[at_M] = self._own(features_M, ids_K[at_M])
            return
        found = self._own.with_states(features_M, ids_K[at_M])
        into.rows_KD[at_M], into.status_K[at_M] = found.rows_KD, found.status_K
        into.states_KW[at_M], into.counts_K[at_M] = found.states_KW, found.counts_K


def parted_view(view: View, hash_range: HashRange, servers: PartServers, split: KeySplit = split_by_owner) -> View:
    """Return the same version with the rows of all parts; `view` holds those of `hash_range`."""
    tables = {
        name: replace(table, search_factory=_PartedSearches(view, table, hash_range, servers, split))
        for name, table in view.tables.items()
    }
    parted = replace(view, tables=tables)
    parted.prepare()
    return parted


def at_one_version(view_of: Callable[[], View], call: Callable[[View], Result]) -> Result:
    """Call with the newest view, again and again with a newer one while a part does not serve its version.

    VersionsDifferError once that has taken AGREE_SECONDS.
    """
    deadline = time.monotonic() + AGREE_SECONDS
    while True:
        try:
            return call(view_of())
        except VersionsDifferError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


@dataclass(frozen=True)
class _PartedSearches:
    """Makes the search of one table; keeps the view, so that its rows stay in memory for as long as calls use them."""

    view: View
    table: ViewTable
    hash_range: HashRange
    servers: PartServers
    split: KeySplit

    def __call__(self, stack: LayerStack) -> PartedSearch:
        head: Head = self.view.head
        return PartedSearch(
            self.table.search,
            self.hash_range,
            self.servers,
            head=head,
            table=stack.table,
            dim=stack.dim,
            state_width=stack.state_width,
            split=self.split,
        )
