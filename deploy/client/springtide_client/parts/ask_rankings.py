"""Asks every part for the best of its own ids at one version, and ranks them."""

from collections.abc import Callable

import msgspec

from springtide_client.errors import PartError
from springtide_client.format.records import Tip
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.parted_search import WAIT_MS
from springtide_client.parts.ranked_ids import RankedIds
from springtide_client.parts.ranking_request import ITEMS_ROUTE, NEIGHBORS_ROUTE, Demand, ItemsRequest, NeighborsRequest
from springtide_client.rows.hash_range import NO_KEYS, HashRange


def ask_rankings(
    servers: PartServers,
    tip: Tip,
    request: NeighborsRequest | ItemsRequest,
    own_range: HashRange = NO_KEYS,
    own: Callable[[], RankedIds] | None = None,
) -> RankedIds:
    """Return the k best of all parts at a version: those of `own_range` by calling `own`, the others by asking.

    VersionsDifferError where a part does not serve the version, PartError where it does not answer or refuses.
    """
    route = NEIGHBORS_ROUTE if isinstance(request, NeighborsRequest) else ITEMS_ROUTE
    body = msgspec.msgpack.encode(request)
    others = [index for index in range(len(servers)) if index != own_range.number - 1]
    found: list[RankedIds] = []

    def rank_own() -> None:
        if own is not None and not own_range.is_empty:
            found.append(own())

    asked = {index: (Demand(tip, servers.range_of(index), WAIT_MS).path(route), body) for index in others}
    for index, answer in servers.post_all(asked, rank_own).items():
        try:
            found.append(RankedIds.decode(answer))
        except ValueError as error:
            raise PartError(f"{servers.name_of(index)} sent no ranking ({error}): is it a Springtide server?") from None
    return RankedIds.best(found, request.k)
