"""Who follows the log arrives where it ends, and has what it says."""

import json
import random
import urllib.error
import urllib.request
from typing import Any

from tests.support.waiting import wait_until
from tests.torture.cluster.cluster import Cluster
from tests.torture.verify.log_contents import LogContents
from tests.torture.verify.verifier import LogVerifier

NUM_ASKED = 30


def check_follower(stage: Cluster, judge: LogVerifier, image: LogContents) -> None:
    """It has what the log has, or a version that a power loss took away and that nothing has passed yet."""
    wait_until(lambda: stage.newest_version() >= image.tip.number, f"the follower's arrival at {image.tip}")
    view = stage.follower.view
    assert view is not None
    if view.tip == image.tip:
        for user in judge.users():
            info = view.row_info(0, user)
            assert (info["count"], info["last_seen_ms"]) == judge.expected_user(image, user), user


def check_server(stage: Cluster, judge: LogVerifier, image: LogContents) -> None:
    """Over HTTP, for some users."""

    def served() -> int:
        latest = ask(stage, "/v1/versions/latest")
        return -1 if latest is None else int(latest["version"])

    wait_until(lambda: served() >= image.tip.number, "the server's arrival")
    for user in random.Random(judge.seed).sample(judge.users(), NUM_ASKED):
        found = ask(stage, f"/v1/embeddings/user_id/{user}")
        assert (found and found["count"]) == judge.expected_user(image, user)[0], user


def ask(stage: Cluster, path: str) -> dict[str, Any] | None:
    """A route's JSON; None where it has none, or nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{stage.port}{path}", timeout=5) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document
    except OSError:
        return None
