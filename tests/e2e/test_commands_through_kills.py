"""`kill -9` at named points of a command's execution: each command is executed once, its result is in one version.

Every trainer is a process of its own, so these tests run only under `make torture`.
"""

import json
import signal
from collections import Counter

import pytest

from springtide.app.version_log.commands.queue import submit_command
from springtide.app.version_log.failpoints import VARIABLE
from springtide_client.log.directory import LogDirectory
from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace, read_view
from tests.support.scale import IS_LONG
from tests.support.waiting import DEADLINE_SECONDS, wait_until

POINTS = {
    "forget": [
        "after a command is claimed",
        "after a command is executed",
        "after a checkpoint",
        "before a command is deleted",
    ],
    "limits": ["after a command is executed", "after an append before its fsync"],
    "rollback": ["after a command is claimed", "before a rollback is appended", "after a rollback is appended"],
}


def executions(workspace: Workspace) -> Counter[str]:
    """Return how many versions report each command as executed."""
    records = LogDirectory(workspace.log).records(None)
    return Counter(command.id for record in records for command in record.meta.executed_commands)


@pytest.mark.skipif(not IS_LONG, reason="a dozen processes: `make torture` runs it")
@pytest.mark.parametrize("kind", POINTS)
def test_a_command_is_executed_once_wherever_its_trainer_is_killed(workspace: Workspace, kind: str) -> None:
    values = make_clicks(2_000)
    workspace.start_broker()
    workspace.produce(values[:1_000])
    assert workspace.train_until_end()["samples_trained"] == 1_000
    target = list(LogDirectory(workspace.log).records(None))[-1].number
    workspace.produce(values[1_000:])
    assert workspace.train_until_end()["samples_trained"] == 2_000
    counts = Counter(json.loads(value)["user_id"] for value in values)
    users = [user for user, _ in counts.most_common()]
    bodies = {
        "forget": lambda number: {"keys": [{"feature": "user_id", "id": users[number]}]},
        "limits": lambda number: {"limits": {"lr": 0.01 * (number + 1)}},
        "rollback": lambda number: {"version": target},
    }
    faults = workspace.folder / "faults"
    faults.mkdir()
    submitted = []
    for number, point in enumerate(POINTS[kind]):
        submitted.append(submit_command(workspace.log, kind, bodies[kind](number)))
        (faults / point.replace(" ", "-")).write_text("KILL 1")
        killed = workspace.start("train", "--no-compact", environment={VARIABLE: str(faults)})
        assert killed.wait(DEADLINE_SECONDS) == -signal.SIGKILL, point
        assert executions(workspace)[submitted[-1]] <= 1
    status = workspace.train_until_end()
    assert executions(workspace) == Counter(submitted)
    wait_until(lambda: not workspace.pending_commands(), "an empty command queue")
    assert status["samples_trained"] == 2_000
    view = read_view(workspace.log)
    if kind == "limits":
        assert status["table"]["limits"]["lr"][0] == 0.01 * len(submitted)
    forgotten = set(users[: len(submitted)]) if kind == "forget" else set()
    for user, count in counts.items():
        assert view.row_info(0, user)["count"] == (None if user in forgotten else count), user
