"""A request that needs rows of other servers: answered from one version that all serve, passed on, or refused."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from starlette.responses import Response

from springtide.app.serving.http.errors import part_unavailable, versions_differ
from springtide.app.serving.http.preconditions import MAX_STALENESS, MIN_VERSION, Preconditions
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.parted_view import AGREE_SECONDS

RETRY_SECONDS = 0.05

Result = TypeVar("Result")


async def at_one_version(
    replica: Replica, preconditions: Preconditions, call: Callable[[ServedView], Awaitable[Result]]
) -> Result:
    """Call with the newest view, again with a newer one while the server of a part does not serve its version.

    ApiError 503 that names the part: `part_unavailable` where its server does not answer, `versions_differ` once the
    servers have not agreed within AGREE_SECONDS.
    """
    deadline = time.monotonic() + AGREE_SECONDS
    while True:
        try:
            return await call(replica.view_satisfying(preconditions))
        except VersionsDifferError as error:
            if time.monotonic() > deadline or replica.stopping:
                raise versions_differ(str(error)) from None
        except PartError as error:
            raise part_unavailable(str(error)) from None
        await replica.wait_for_change(RETRY_SECONDS)


PASSED_ON = (MAX_STALENESS, MIN_VERSION)
PASSED_BACK = ("content-type", "retry-after", "x-springtide-version", "x-springtide-staleness-ms")


def forward_get(servers: PartServers, index: int, path: str, headers: Mapping[str, str]) -> Response:
    """Ask the server of a part, and return its response; ApiError 503 `part_unavailable` if there is none.

    `path` with its query, still encoded; `headers` those of the client's request, by lower-case name.
    """
    sent = {name: headers[name] for name in PASSED_ON if name in headers}
    try:
        found = servers.get(index, path, sent)
    except PartError as error:
        raise part_unavailable(str(error)) from None
    if found.status in (401, 403):  # the client's own token was valid here
        raise part_unavailable(f"{servers.name_of(index)} refuses this server's token")
    received = found.headers
    back = {name: received[name] for name in PASSED_BACK if name in received}
    return Response(found.body, found.status, back)
