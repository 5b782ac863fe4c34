"""A request that needs rows of several servers: answered from one version that all of them serve, or refused."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from springtide.app.serving.http.errors import part_unavailable, versions_differ
from springtide.app.serving.http.preconditions import Preconditions
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide_client.errors import PartError, VersionsDifferError
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
