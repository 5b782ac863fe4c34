"""An id that is forgotten is gone from every tier, from bases, and, in order, from every follower; with a receipt."""

import json
import os
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from springtide_client import HotModel
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace, wait_until

SECRET = "let-me-in"
IS_LONG = "TORTURE_EXAMPLES" in os.environ


def ask(workspace: Workspace, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """With the admin's token."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{workspace.url}{path}", data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())


def bases_holding(workspace: Workspace, row_id: int) -> list[bool]:
    """Of each base, oldest first, whether it has the user's row."""
    bases = [Base.open(path) for path in LogDirectory(workspace.log).bases()]
    return [bool(((base.rows.feature == 0) & (base.rows.id == row_id)).any()) for base in bases]


def test_a_forgotten_id_is_gone_from_bases_and_followers_and_the_receipt_tells_the_rest(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPRINGTIDE_TOKENS", f"admin={SECRET}")
    config = workspace.folder / "springtide.toml"
    config.write_text(config.read_text().replace("[log]", "[log]\nbase_minutes = 0.05"))
    values = make_clicks(3_000)
    workspace.start_broker()
    workspace.produce(values)
    workspace.start("train")
    workspace.start("serve")
    status = lambda: workspace.get("/v1/status") or {}  # noqa: E731
    wait_until(lambda: (status().get("samples_trained") or 0) >= 3_000, what="learning")
    wait_until(lambda: workspace.get("/readyz"), what="the server's readiness")
    user, item = json.loads(values[0])["user_id"], "item-0"
    wait_until(lambda: True in bases_holding(workspace, user), what="a base with the user")

    seen: list[tuple[int, int]] = []  # version and the user's status, as this process's own follower has them
    gone = threading.Event()
    with HotModel(workspace.log) as model:

        def look(version: int) -> None:
            seen.append((version, int(model.lookup("user_id", [user])[1][0])))
            if seen[-1][1] != 0:
                gone.set()

        model.on_swap(look)
        code, accepted = ask(
            workspace,
            "POST",
            "/v1/forget",
            {"keys": [{"feature": "user_id", "id": user}, {"feature": "item_id", "id": item}]},
        )
        assert (code, accepted["state"]) == (202, "accepted")
        path = f"/v1/commands/{accepted['command']}"
        wait_until(lambda: ask(workspace, "GET", path)[1].get("state") == "durable", what="the receipt")
        assert gone.wait(20)
    receipt = ask(workspace, "GET", path)[1]
    assert receipt["result"] == {"keys": 2}
    assert [key["erased_in"] for key in receipt["keys"]] == [receipt["version"]] * 2
    assert receipt["keys"][0]["oldest_file"]
    assert receipt["keys"][0]["removal_condition"].startswith("when ")
    # not from an older version on, and never back
    assert all((status != 0) == (version >= receipt["version"]) for version, status in seen[1:])
    wait_until(
        lambda: ask(workspace, "GET", f"/v1/embeddings/user_id/{user}")[1].get("status") in ("forgotten", "unknown"),
        what="the server",
    )
    wait_until(lambda: ask(workspace, "GET", f"/v1/embeddings/item_id/{item}")[1].get("status") != "known", what="item")
    # later bases are without it, and in the end no file of the log has it
    values = make_clicks(300, seed=5)
    again = [value for value in values if json.loads(value)["user_id"] != user]

    def feed_until_gone() -> bool:
        workspace.produce(again)
        return not ask(workspace, "GET", path)[1]["keys"][0]["oldest_file"] or True not in bases_holding(
            workspace, user
        )

    wait_until(feed_until_gone, what="bases without the user")
    assert ask(workspace, "GET", "/v1/commands/1234")[0] == 404
    assert not json.loads(json.dumps(ask(workspace, "GET", path)[1]["note"]))


@pytest.mark.skipif(not IS_LONG, reason="seven processes: `make torture` runs it")
def test_going_back_over_http_and_from_the_command_line(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPRINGTIDE_TOKENS", f"admin={SECRET}")
    values = make_clicks(3_000)
    workspace.start_broker()
    workspace.produce(values[:2_000])
    assert workspace.train_until_end()["samples_trained"] == 2_000
    goal = list(LogDirectory(workspace.log).records(None))[-1].number
    workspace.produce(values[2_000:])
    assert workspace.train_until_end()["samples_trained"] == 3_000

    # no trainer runs: the command writes the version itself
    done = workspace.run("versions", "rollback", str(goal))
    assert done.returncode == 0, done.stderr
    assert "executed in version 3.1" in done.stdout
    newest = list(LogDirectory(workspace.log).records(None))[-1]
    assert (newest.meta.restores, newest.meta.samples_trained) == (goal, 2_000)
    user = json.loads(values[0])["user_id"]
    done = workspace.run("forget", "--key", f"user_id={user}")
    assert done.returncode == 0, done.stderr
    assert f"user_id={user}: gone since version 4.1; the oldest file that still holds it is seg-" in done.stdout

    trainer = workspace.start("train")
    workspace.start("serve")
    wait_until(lambda: (workspace.get("/v1/status") or {}).get("samples_trained") == 3_000, what="learning again")
    wait_until(lambda: workspace.get("/readyz"), what="the server's readiness")
    code, accepted = ask(workspace, "POST", "/v1/rollback", {"version": goal, "skip": True})
    assert code == 202
    path = f"/v1/commands/{accepted['command']}"
    wait_until(lambda: ask(workspace, "GET", path)[1].get("state") == "durable", what="the receipt")
    assert ask(workspace, "GET", path)[1]["result"]["skipped"] == 1_000
    wait_until(
        lambda: (workspace.get("/v1/status") or {}).get("dead_letters", {}).get("gate") == 1_000, what="dead letters"
    )
    done = workspace.run("versions", "rollback", str(goal), "--wait", "30")
    assert done.returncode == 0, done.stderr
    assert "a trainer runs" in done.stdout
    assert "executed in version" in done.stdout
    # forgotten before, and learned since in samples that are read again
    wait_until(lambda: (workspace.get("/v1/status") or {}).get("samples_trained") == 3_000, what="learning once more")
    workspace.stop(trainer)
    assert workspace.run("versions", "verify", "--deep").returncode == 0
    refused = workspace.run("versions", "rollback", "9.9")
    assert (refused.returncode, "not in the log" in refused.stderr) == (2, True)
