"""Orders under `kill -9` at named moments of their execution: each is executed once, its result in one version.

Every trainer is a process of its own, so this belongs to `make torture`; the suite kills none here.
"""

import json
import os
import signal
from collections import Counter

import pytest
from springtide_client.log.directory import LogDirectory

from app.version_log.commands.queue import submit_command
from app.version_log.failpoints import VARIABLE
from tests.e2e.clicks import make_clicks
from tests.e2e.test_policies import view_of
from tests.e2e.workspace import Workspace, wait_until

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


IS_LONG = "TORTURE_EXAMPLES" in os.environ


def executed(workspace: Workspace) -> Counter[str]:
    """How many versions tell of each order."""
    records = LogDirectory(workspace.log).records(None)
    return Counter(entry.id for record in records for entry in record.meta.executed_commands)


@pytest.mark.skipif(not IS_LONG, reason="a dozen processes: `make torture` runs it")
@pytest.mark.parametrize("kind", POINTS)
def test_an_order_is_executed_once_whenever_its_trainer_is_killed(workspace: Workspace, kind: str) -> None:
    values = make_clicks(2_000)
    workspace.start_broker()
    workspace.produce(values[:1_000])
    assert workspace.train_until_end()["samples_trained"] == 1_000
    goal = list(LogDirectory(workspace.log).records(None))[-1].number
    workspace.produce(values[1_000:])
    assert workspace.train_until_end()["samples_trained"] == 2_000
    counts = Counter(json.loads(value)["user_id"] for value in values)
    users = [user for user, _ in counts.most_common()]
    bodies = {
        "forget": lambda number: {"keys": [{"feature": "user_id", "id": users[number]}]},
        "limits": lambda number: {"limits": {"lr": 0.01 * (number + 1)}},
        "rollback": lambda number: {"version": goal},
    }
    faults = workspace.folder / "faults"
    faults.mkdir()
    orders = []
    for number, point in enumerate(POINTS[kind]):
        orders.append(submit_command(workspace.log, kind, bodies[kind](number)))
        (faults / point.replace(" ", "-")).write_text("KILL 1")
        killed = workspace.start("train", "--no-compact", more={VARIABLE: str(faults)})
        assert killed.wait(60) == -signal.SIGKILL, point
        assert executed(workspace)[orders[-1]] <= 1
    status = workspace.train_until_end()
    assert executed(workspace) == Counter(orders)
    folder = workspace.log / "commands"
    wait_until(lambda: not [path for path in folder.iterdir() if not path.name.startswith(".")], what="their end")
    assert status["samples_trained"] == 2_000
    view = view_of(workspace.log)
    if kind == "limits":
        assert status["table"]["limits"]["lr"][0] == 0.01 * len(orders)
    gone = set(users[: len(orders)]) if kind == "forget" else set()
    for user, count in counts.items():
        assert view.row_info(0, user)["count"] == (None if user in gone else count), user
