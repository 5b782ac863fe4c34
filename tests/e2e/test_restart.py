"""A trainer that is stopped or killed goes on from its newest version: no sample is learned twice, none is lost."""

import json
import signal
from collections import Counter

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import wait_until


def occurrences(values: list[bytes]) -> Counter[str]:
    """How often each user stands in the records."""
    return Counter(str(json.loads(value)["user_id"]) for value in values)


def served_counts(workspace, users: list[str]) -> dict[str, int]:
    return {user: workspace.get(f"/v1/embeddings/user_id/{user}")["count"] for user in users}


def test_stopped_and_started_again_the_counts_and_scores_go_on(workspace) -> None:
    values = make_clicks(6_000)
    workspace.start_broker()
    workspace.produce(values[:4_000])
    first = workspace.train_until_end()
    assert first["samples_trained"] == 4_000

    workspace.produce(values[4_000:])
    second = workspace.train_until_end()

    assert second["samples_trained"] == 6_000
    assert second["epoch"] > first["epoch"]
    assert second["version"] > first["version"]
    workspace.start("serve")
    wait_until(lambda: workspace.get("/readyz"), what="the server's readiness")
    expected = occurrences(values)
    assert served_counts(workspace, list(expected)) == dict(expected)


def test_killed_in_the_middle_every_sample_still_counts_once(workspace) -> None:
    values = make_clicks(30_000, seed=1)
    workspace.start_broker()
    for start in range(0, 20_000, 10_000):
        workspace.produce(values[start : start + 10_000])
        before = newest_samples(workspace)
        trainer = workspace.start("train")
        wait_until(lambda before=before: newest_samples(workspace) > before, what="learning", seconds=60)
        workspace.stop(trainer, by=signal.SIGKILL)
    workspace.produce(values[20_000:])

    status = workspace.train_until_end()

    assert status["samples_trained"] == 30_000
    workspace.start("serve")
    wait_until(lambda: workspace.get("/readyz"), what="the server's readiness")
    expected = occurrences(values)
    assert served_counts(workspace, list(expected)) == dict(expected)


def newest_samples(workspace) -> int:
    """The samples that the newest status tells of; 0 before there is one."""
    statuses = sorted(workspace.log.glob("status-*.json"))
    return max((json.loads(path.read_text()).get("samples_trained", 0) for path in statuses), default=0)
