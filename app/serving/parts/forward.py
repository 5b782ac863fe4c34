"""One row by GET, where another server holds it: its response is passed on."""

from collections.abc import Mapping

from starlette.responses import Response

from springtide.app.serving.http.errors import part_unavailable
from springtide.app.serving.http.preconditions import MAX_STALENESS, MIN_VERSION
from springtide_client.errors import PartError
from springtide_client.parts.part_servers import PartServers

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
