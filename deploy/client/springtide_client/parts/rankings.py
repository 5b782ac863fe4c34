"""The best ids of all parts at one version, neighbors of a row or items for a user: what each is asked, and ranking.

POST /v1/parts/neighbors or /v1/parts/items ?version=&checksum=&range=&wait_ms=. The body is MessagePack with
little-endian columns. The response is RankedIds.
"""

# D dimension of rows, K keys of a user, L lists, F dense features, M ids
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qs

import msgspec
import numpy as np

from springtide_client.array_types import Float32Array, Int64Array
from springtide_client.errors import PartError
from springtide_client.format.records import Head
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.parted_view import WAIT_MS
from springtide_client.parts.row_request import MAX_WAIT_MS
from springtide_client.rows.hash_range import NO_KEYS, HashRange

NEIGHBORS_ROUTE, ITEMS_ROUTE = "/v1/parts/neighbors", "/v1/parts/items"
MAX_RANKED = 1 << 20


class Demand(msgspec.Struct, frozen=True):
    """Which version of which part is meant, and for how long the server waits for it."""

    head: Head
    hash_range: HashRange
    wait_ms: int

    def path(self, route: str) -> str:
        """Return the path and query of a request."""
        head = self.head
        return f"{route}?version={head.number}&checksum={head.checksum}&range={self.hash_range}&wait_ms={self.wait_ms}"

    @staticmethod
    def decode(query: str) -> "Demand":
        """Return what a query demands; ValueError for another query."""
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        try:
            head = Head(int(fields["version"]), int(fields["checksum"]))
            wait_ms = min(MAX_WAIT_MS, max(0, int(fields["wait_ms"])))
            return Demand(head, HashRange.parse(fields["range"]), wait_ms)
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
Answer = TypeVar("Answer")


def decode_ranking(body: bytes, kind: type[Ranking]) -> Ranking:
    """Return the request in a body; ValueError for another body."""
    request: Ranking = msgspec.msgpack.decode(body, type=kind)
    if not 1 <= request.k <= MAX_RANKED:
        raise ValueError(f"k is {request.k}, it must be from 1 to {MAX_RANKED}")
    return request


class RankedIds(NamedTuple):
    """Ids with their scores, the best first; ties by id. `texts_M`: the string where an id is the hash of one."""

    ids_M: Int64Array
    scores_M: Float32Array
    texts_M: Sequence[str | None]

    def encode(self) -> bytes:
        """Return them as the body of a response: MessagePack, with little-endian columns."""
        columns = self.ids_M.astype("<i8", copy=False).tobytes(), self.scores_M.astype("<f4", copy=False).tobytes()
        texts = list(self.texts_M) if any(text is not None for text in self.texts_M) else None
        return msgspec.msgpack.encode((*columns, texts))

    @staticmethod
    def decode(body: bytes) -> "RankedIds":
        """Return what a part has answered; ValueError for another body."""
        ids, scores, texts = msgspec.msgpack.decode(body, type=tuple[bytes, bytes, list[str | None] | None])
        ids_M, scores_M = np.frombuffer(ids, "<i8"), np.frombuffer(scores, "<f4")
        texts_M = [None] * len(ids_M) if texts is None else texts
        if not len(ids_M) == len(scores_M) == len(texts_M):
            raise ValueError(f"{len(ids_M)} ids with {len(scores_M)} scores and {len(texts_M)} texts")
        return RankedIds(ids_M, scores_M, texts_M)

    @staticmethod
    def best(of_parts: Sequence["RankedIds"], k: int) -> "RankedIds":
        """Return the k best of all parts."""
        ids = np.concatenate([np.zeros(0, np.int64), *(part.ids_M for part in of_parts)])
        scores = np.concatenate([np.zeros(0, np.float32), *(part.scores_M for part in of_parts)])
        texts = [text for part in of_parts for text in part.texts_M]
        order = np.lexsort((ids, -scores))[:k]
        return RankedIds(ids[order], scores[order], [texts[place] for place in order.tolist()])

    def pairs(self, *, sign: float = 1.0) -> Iterator[tuple[int | str, float]]:
        """Return an iterator over ids, strings where they are hashes of some, and their scores times `sign`."""
        ids = [row_id if text is None else text for row_id, text in zip(self.ids_M.tolist(), self.texts_M, strict=True)]
        scores_M = self.scores_M if sign == 1 else np.float32(sign) * self.scores_M
        return zip(ids, scores_M.tolist(), strict=True)


def ask_rankings(
    servers: PartServers,
    head: Head,
    request: NeighborsRequest | ItemsRequest,
    own_range: HashRange = NO_KEYS,
    own: Callable[[], RankedIds] | None = None,
) -> RankedIds:
    """Return the k best of all parts at a version: those of `own_range` by calling `own`, the others by asking.

    VersionsDifferError where a part does not serve the version, PartError where it does not answer or refuses.
    """
    route = NEIGHBORS_ROUTE if isinstance(request, NeighborsRequest) else ITEMS_ROUTE
    body = msgspec.msgpack.encode(request)
    return RankedIds.best(ask_parts(servers, head, route, body, RankedIds.decode, own_range, own), request.k)


def ask_parts(
    servers: PartServers,
    head: Head,
    route: str,
    body: bytes,
    decode: Callable[[bytes], Answer],
    own_range: HashRange = NO_KEYS,
    own: Callable[[], Answer] | None = None,
) -> list[Answer]:
    """Return what each part answers to a question at a version: that of `own_range` by calling `own`.

    `decode` raises ValueError for what is no answer. VersionsDifferError where a part does not serve the version,
    PartError where it does not answer or refuses.
    """
    others = [index for index in range(len(servers)) if index != own_range.number - 1]
    found: list[Answer] = []

    def answer_own() -> None:
        if own is not None and not own_range.is_empty:
            found.append(own())

    asked = {index: (Demand(head, servers.range_of(index), WAIT_MS).path(route), body) for index in others}
    for index, answer in servers.post_all(asked, answer_own).items():
        try:
            found.append(decode(answer))
        except ValueError as error:
            message = f"{servers.name_of(index)} sent no answer to {route} ({error}): is it a Springtide server?"
            raise PartError(message) from None
    return found
