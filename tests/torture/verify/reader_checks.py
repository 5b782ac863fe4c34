"""Check that readers of the log reach its end and hold what it says."""

import json
import random
import urllib.error
import urllib.request
from typing import Any

from tests.support.waiting import wait_until
from tests.torture.cluster.cluster import Cluster
from tests.torture.verify.log_contents import LogContents
from tests.torture.verify.verifier import LogVerifier

NUM_CHECKED = 30


def check_follower(cluster: Cluster, verifier: LogVerifier, contents: LogContents) -> None:
    """Check the rows of the follower in this process.

    It may hold a version that a power loss removed, until a higher one is published.
    """
    wait_until(lambda: cluster.newest_version() >= contents.head.number, f"the follower's arrival at {contents.head}")
    view = cluster.follower.view
    assert view is not None
    if view.head == contents.head:
        for user in verifier.users():
            info = view.row_info(0, user)
            assert (info["count"], info["last_seen_ms"]) == verifier.expected_user(contents, user), user


def check_server(cluster: Cluster, verifier: LogVerifier, contents: LogContents) -> None:
    """Check the counts of some users over HTTP."""

    def served() -> int:
        latest = get(cluster, "/v1/versions/latest")
        return -1 if latest is None else int(latest["version"])

    wait_until(lambda: served() >= contents.head.number, "the server's arrival")
    for user in random.Random(verifier.seed).sample(verifier.users(), NUM_CHECKED):
        found = get(cluster, f"/v1/embeddings/user_id/{user}")
        assert (found and found["count"]) == verifier.expected_user(contents, user)[0], user


def get(cluster: Cluster, path: str) -> dict[str, Any] | None:
    """Return a route's JSON, or None while it does not answer 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}{path}", timeout=60) as response:
            document: dict[str, Any] = json.loads(response.read())
            return document
    except OSError:
        return None
