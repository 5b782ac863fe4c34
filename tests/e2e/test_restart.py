"""A trainer that was stopped or killed resumes at its newest version: no sample is learned twice, none is lost."""

import json
import signal
from collections import Counter

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace
from tests.support.waiting import wait_until


def count_users(values: list[bytes]) -> Counter[str]:
    """Return how many records each user has."""
    return Counter(str(json.loads(value)["user_id"]) for value in values)


def assert_served_counts(workspace: Workspace, values: list[bytes]) -> None:
    """The server's count of each user is that of the records."""
    workspace.start_server()
    expected = count_users(values)
    assert {user: workspace.get(f"/v1/embeddings/user_id/{user}")["count"] for user in expected} == dict(expected)


def test_counts_and_scores_continue_after_a_stop(workspace: Workspace) -> None:
    values = make_clicks(6_000)
    workspace.start_broker()
    workspace.produce(values[:4_000])
    first = workspace.train_until_end("--no-compact")
    assert first["samples_trained"] == 4_000

    workspace.produce(values[4_000:])
    second = workspace.train_until_end("--no-compact")

    assert second["samples_trained"] == 6_000
    assert second["epoch"] > first["epoch"]
    assert second["version"] > first["version"]
    assert_served_counts(workspace, values)


def test_every_sample_counts_once_after_kills(workspace: Workspace) -> None:
    values = make_clicks(30_000, seed=1)
    workspace.start_broker()
    for start in range(0, 20_000, 10_000):
        workspace.produce(values[start : start + 10_000])
        before = workspace.samples_trained()
        trainer = workspace.start("train")
        wait_until(lambda before=before: workspace.samples_trained() > before, "learning")
        workspace.stop(trainer, by=signal.SIGKILL)
    workspace.produce(values[20_000:])

    assert workspace.train_until_end("--no-compact")["samples_trained"] == 30_000
    assert_served_counts(workspace, values)
