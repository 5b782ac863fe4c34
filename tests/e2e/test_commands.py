"""Commands to a running trainer, over HTTP and from the command line, take effect and outlive a kill."""

import json
import signal
from typing import Any

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace
from tests.support.waiting import wait_until


def test_limits_and_forgetting_reach_a_running_trainer_and_outlive_it(workspace: Workspace) -> None:
    def row(feature: str, row_id: object) -> dict[str, Any]:
        return workspace.request("GET", f"/v1/embeddings/{feature}/{row_id}", token=None)[1]

    values = make_clicks(3_000)
    workspace.start_broker()
    workspace.produce(values)
    trainer = workspace.start("train")
    workspace.start_server()
    wait_until(lambda: (workspace.status().get("samples_trained") or 0) >= 3_000, "learning")
    assert workspace.status()["commands"] == ["forget", "limits", "rollback"]

    assert workspace.request("PATCH", "/v1/table", {"lr": 0.5}, token=None)[0] in (401, 403)
    assert workspace.request("GET", f"{workspace.COMMANDS}/1234")[0] == 404
    code, error = workspace.request("PATCH", "/v1/table", {"features": {"last_items": {"ttl_seconds": 5}}})
    assert (code, error["error"]["code"]) == (400, "bad_request")
    assert "item_id" in error["error"]["message"]
    workspace.submit(
        "PATCH", "/v1/table", {"lr": 0.02, "device_bytes": "24MiB", "features": {"item_id": {"min_count": 200}}}
    )
    expected = {
        "lr": [0.02, 0.05],
        "device_bytes": [24 << 20, 32 << 20],
        "features": {"item_id": {"min_count": [200, None]}},
    }
    wait_until(lambda: workspace.status()["table"].get("limits") == expected, "the limits")

    user = json.loads(values[0])["user_id"]
    wait_until(lambda: row("user_id", user).get("status") == "known", "the user's row")
    done = workspace.run("forget", "--key", f"user_id={user}")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: row("user_id", user).get("status") == "forgotten", "the erasure")

    workspace.stop(trainer, by=signal.SIGKILL)
    workspace.start("train")
    again = [json.loads(value) | {"user_id": user, "item_id": "item-new"} for value in values[:5]]
    workspace.produce([json.dumps(click).encode() for click in again])
    wait_until(lambda: (workspace.status().get("samples_trained") or 0) >= 3_005, "learning more")
    wait_until(lambda: row("user_id", user).get("count") == 5, "the user's new row")
    assert row("item_id", "item-new")["status"] == "not_admitted"
    assert workspace.status()["table"]["limits"] == expected
    wait_until(lambda: not workspace.pending_commands(), "empty command queue")
    shown = json.loads(workspace.run("versions", "show", "--json").stdout)
    assert shown["admission"] == {"1": 200}
