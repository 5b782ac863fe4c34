"""A forgotten id disappears from every tier, from bases and, in order, from every follower."""

import json
import threading

from springtide_client import HotModel
from springtide_client.errors import LogError
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace
from tests.support.waiting import DEADLINE_SECONDS, wait_until


def bases_with_user(workspace: Workspace, user: int) -> list[bool]:
    """Return for each base, oldest first, whether it has the user's row."""
    bases = []
    for path in LogDirectory(workspace.log).bases():
        try:
            bases.append(Base.open(path))
        except LogError:  # it is being deleted
            wait_until(lambda path=path: not path.exists(), "the end of a retired base")
    return [bool(((base.main.rows.feature == 0) & (base.main.rows.id == user)).any()) for base in bases]


def row_status(workspace: Workspace, feature: str, row_id: object) -> str | None:
    return workspace.request("GET", f"/v1/embeddings/{feature}/{row_id}")[1].get("status")


def test_a_forgotten_id_disappears_from_followers_servers_and_bases(workspace: Workspace) -> None:
    workspace.configure({"log": {"base_minutes": 0.05}})
    values = make_clicks(3_000)
    workspace.start_broker()
    workspace.produce(values)
    workspace.start("train")
    workspace.start_server()
    wait_until(lambda: (workspace.status().get("samples_trained") or 0) >= 3_000, "learning")
    user, item = json.loads(values[0])["user_id"], "item-0"
    wait_until(lambda: True in bases_with_user(workspace, user), "a base with the user")

    seen: list[tuple[int, int]] = []  # version and the user's status code, in this process's own follower
    is_forgotten = threading.Event()
    with HotModel(workspace.log) as model:

        def on_swap(version: int) -> None:
            seen.append((version, int(model.lookup("user_id", [user])[1][0])))
            if seen[-1][1] != 0:
                is_forgotten.set()

        model.on_swap(on_swap)
        command = workspace.submit(
            "POST", "/v1/forget", {"keys": [{"feature": "user_id", "id": user}, {"feature": "item_id", "id": item}]}
        )
        wait_until(lambda: workspace.request("GET", command)[1].get("state") == "durable", "a durable command")
        assert is_forgotten.wait(DEADLINE_SECONDS)
    status = workspace.request("GET", command)[1]
    assert status["result"] == {"keys": 2}
    assert [key["erased_in"] for key in status["keys"]] == [status["version"]] * 2
    assert status["keys"][0]["oldest_file"]
    assert status["keys"][0]["removal_condition"].startswith("when ")
    assert all((code != 0) == (version >= status["version"]) for version, code in seen[1:])
    wait_until(
        lambda: row_status(workspace, "user_id", user) in ("forgotten", "unknown"), "the server without the user"
    )
    wait_until(lambda: row_status(workspace, "item_id", item) != "known", "the item's erasure at the server")

    others = [value for value in make_clicks(300, seed=5) if json.loads(value)["user_id"] != user]

    def is_gone_after_more_clicks() -> bool:
        workspace.produce(others)
        in_log = workspace.request("GET", command)[1]["keys"][0]["oldest_file"]
        return not in_log or True not in bases_with_user(workspace, user)

    wait_until(is_gone_after_more_clicks, "bases without the user")
    assert not workspace.request("GET", command)[1]["note"]
