"""What the server of a part is asked for its best ids: neighbors of a row, or items for a user, at exactly one version.

POST /v1/parts/neighbors or /v1/parts/items ?version=&checksum=&range=&wait_ms=. The body is MessagePack with
little-endian columns. The response is RankedIds.
"""

# D dimension of rows, K keys of a user, L lists, F dense features
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec
import numpy as np

from springtide_client.array_types import Float32Array, Int64Array
from springtide_client.format.records import Tip
from springtide_client.parts.row_request import MAX_WAIT_MS
from springtide_client.rows.hash_range import HashRange

NEIGHBORS_ROUTE, ITEMS_ROUTE = "/v1/parts/neighbors", "/v1/parts/items"
MAX_RANKED = 1 << 20


class Demand(msgspec.Struct, frozen=True):
    """Which version of which part is meant, and for how long the server waits for it."""

    tip: Tip
    hash_range: HashRange
    wait_ms: int

    def path(self, route: str) -> str:
        """Return the path and query of a request."""
        tip = self.tip
        return f"{route}?version={tip.number}&checksum={tip.checksum}&range={self.hash_range}&wait_ms={self.wait_ms}"

    @staticmethod
    def decode(query: str) -> "Demand":
        """Return what a query demands; ValueError for another query."""
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        try:
            tip = Tip(int(fields["version"]), int(fields["checksum"]))
            wait_ms = min(MAX_WAIT_MS, max(0, int(fields["wait_ms"])))
            return Demand(tip, HashRange.parse(fields["range"]), wait_ms)
        except KeyError as missing:
            raise ValueError(f"the query lacks {missing}") from None


class NeighborsRequest(msgspec.Struct, array_like=True, frozen=True):
    """The k rows of a feature that are nearest to a vector. `metric`: one of rows.nearest.METRICS."""

    number: int
    without_id: int
    k: int
    metric: str
    query: bytes  # float32 (D)

    @property
    def query_D(self) -> Float32Array:
        """The vector."""
        return np.frombuffer(self.query, "<f4").astype(np.float32)


class ItemsRequest(msgspec.Struct, array_like=True, frozen=True):
    """The k best items for a user, of whom the rows are sent: they may lie on any part."""

    k: int
    exact: bool
    dim: int
    rows: bytes  # float32 (K, D), in the order of lookup_keys
    offsets: bytes  # int64 (L, 2)
    dense: bytes  # float32 (F)
    one_of: Mapping[str, tuple[int, ...]]  # by field: encoded ids of which an item must have one
    within: Mapping[str, tuple[float, float]]  # by field: the range of a number, both ends in it
    excluded: bytes  # int64

    @property
    def rows_KD(self) -> Float32Array:
        """The user's rows."""
        return np.frombuffer(self.rows, "<f4").reshape(-1, self.dim).astype(np.float32)

    @property
    def offsets_L2(self) -> Int64Array:
        """Where the rows of each list begin and end among those of its field."""
        return np.frombuffer(self.offsets, "<i8").reshape(-1, 2).astype(np.int64)

    @property
    def dense_1F(self) -> Float32Array:
        """The user's numbers."""
        return np.frombuffer(self.dense, "<f4").reshape(1, -1).astype(np.float32)

    @property
    def excluded_X(self) -> Int64Array:
        """Ids of items that are not wanted."""
        return np.frombuffer(self.excluded, "<i8").astype(np.int64)


Ranking = TypeVar("Ranking", bound=NeighborsRequest | ItemsRequest)


def decode_ranking(body: bytes, kind: type[Ranking]) -> Ranking:
    """Return the request in a body; ValueError for another body."""
    request: Ranking = msgspec.msgpack.decode(body, type=kind)
    if not 1 <= request.k <= MAX_RANKED:
        raise ValueError(f"k is {request.k}, it must be from 1 to {MAX_RANKED}")
    return request
