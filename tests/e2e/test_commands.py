"""Orders to a running trainer: over HTTP and from the command line, through a kill."""

import json
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace, wait_until

SECRET = "let-me-in"


def patch(workspace: Workspace, body: dict[str, Any], token: str | None = SECRET) -> tuple[int, dict[str, Any]]:
    """The status and the answer of PATCH /v1/table."""
    headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    request = urllib.request.Request(
        f"{workspace.url}/v1/table", json.dumps(body).encode(), headers=headers, method="PATCH"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())


def row(workspace: Workspace, feature: str, row_id: object) -> dict[str, Any]:
    """A row, or what is said instead of it."""
    try:
        with urllib.request.urlopen(f"{workspace.url}/v1/embeddings/{feature}/{row_id}", timeout=5) as answer:
            found: dict[str, Any] = json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        found = json.loads(refusal.read())
    return found


def learned(workspace: Workspace, samples: int) -> bool:
    return ((workspace.get("/v1/status") or {}).get("samples_trained") or 0) >= samples


def test_limits_and_forgetting_reach_a_running_trainer_and_outlive_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPRINGTIDE_TOKENS", f"admin={SECRET}")
    values = make_clicks(3_000)
    workspace.start_broker()
    workspace.produce(values)
    trainer = workspace.start("train")
    workspace.start("serve")
    wait_until(lambda: learned(workspace, 3_000), what="learning")
    wait_until(lambda: workspace.get("/readyz"), what="the server's readiness")
    assert (workspace.get("/v1/status") or {})["commands"] == ["forget", "limits", "rollback"]

    assert patch(workspace, {"lr": 0.5}, token=None)[0] in (401, 403)
    status, refusal = patch(workspace, {"features": {"last_items": {"ttl_seconds": 5}}})
    assert (status, refusal["error"]["code"]) == (400, "bad_request")
    assert "item_id" in refusal["error"]["message"]
    limits = {"lr": 0.02, "device_bytes": "24MiB", "features": {"item_id": {"min_count": 200}}}
    status, accepted = patch(workspace, limits)
    assert (status, accepted["state"]) == (202, "accepted")
    held = {
        "lr": [0.02, 0.05],
        "device_bytes": [24 << 20, 32 << 20],
        "features": {"item_id": {"min_count": [200, None]}},
    }
    wait_until(lambda: (workspace.get("/v1/status") or {})["table"].get("limits") == held, what="the limits")

    user = json.loads(values[0])["user_id"]
    wait_until(lambda: row(workspace, "user_id", user).get("status") == "known", what="the user")
    done = workspace.run("forget", "--key", f"user_id={user}")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: row(workspace, "user_id", user).get("status") == "forgotten", what="forgetting")

    workspace.stop(trainer, by=signal.SIGKILL)
    workspace.start("train")
    again = [json.loads(value) | {"user_id": user, "item_id": "item-new"} for value in values[:5]]
    workspace.produce([json.dumps(click).encode() for click in again])
    wait_until(lambda: learned(workspace, 3_005), what="learning on")
    wait_until(lambda: row(workspace, "user_id", user).get("count") == 5, what="the user as a new one")
    assert row(workspace, "item_id", "item-new")["status"] == "not_admitted"
    assert (workspace.get("/v1/status") or {})["table"]["limits"] == held
    commands = workspace.log / "commands"
    wait_until(lambda: not [path for path in commands.iterdir() if not path.name.startswith(".")], what="the receipts")
    shown = json.loads(workspace.run("versions", "show", "--json").stdout)
    assert shown["admission"] == {"1": 200}
