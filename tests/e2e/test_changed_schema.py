"""Servers and HotModels follow a changed schema without a restart, and no answer mixes the old schema with the new."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from springtide_client import HotModel
from springtide_client.errors import SpringtideError
from tests.app.serving.conftest import World
from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace, read_view
from tests.support.config import CLICKS, NET_ALONE, config_in
from tests.support.learned_log import learn_numbers
from tests.support.scale import IS_LONG
from tests.support.waiting import DEADLINE_SECONDS, wait_until

FIELDS = ("label", "labels", "multi_value", "categorical")
BEFORE = {
    "schema": dict(zip(FIELDS, ("click", None, ["genres"], ["user_id", "item_id"]), strict=True)),
    "table": {"dim": 8},
}
AFTER = {
    "schema": dict(zip(FIELDS, (None, ["click", "liked"], None, ["user_id", "item_id", "genre"]), strict=True)),
    "table": {"dim": 12},
}


class Reader:
    """Asks without a pause, and checks that each answer is of one schema."""

    def __init__(self, workspace: "Workspace | ServerHere", model: HotModel | None) -> None:
        self.workspace, self.model = workspace, model
        self.seen: set[tuple[int, ...]] = set()  # dims and numbers of labels
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self.instances = [json.loads(value) for value in make_clicks(5, seed=9)]
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.seen.add(self._ask_model(self.model) if self.model is not None else self._ask_server())
            except (SpringtideError, AssertionError, OSError, ValueError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def _ask_model(self, model: HotModel) -> tuple[int, ...]:
        predicted: Any = model.predict(self.instances)
        rows, _ = model.lookup("user_id", [1, 2, 3])
        (labels,) = {tuple(prediction) for prediction in predicted}
        return len(labels), rows.shape[1]

    def _ask_server(self) -> tuple[int, ...]:
        code, looked_up = self.workspace.request("POST", "/v1/embeddings/user_id", {"ids": [1, 2, 3]}, token=None)
        assert code == 200, looked_up
        assert all(vector is None or len(vector) == looked_up["dim"] for vector in looked_up["vectors"])
        code, predicted = self.workspace.request("POST", "/v1/predict", {"instances": self.instances}, token=None)
        assert code == 200, predicted
        (labels,) = {tuple(prediction) for prediction in predicted["predictions"]}
        is_old = looked_up["version"] >> 32 == 1, predicted["version"] >> 32 == 1
        assert (looked_up["dim"], labels) == (8 if is_old[0] else 12, ("click",) if is_old[1] else ("click", "liked"))
        return len(labels), looked_up["dim"]

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join()


class ServerHere:
    """Asked like a Workspace: a server in a thread of this process."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def request(self, method: str, path: str, body: Any, token: str | None) -> tuple[int, Any]:
        answer = self.client.request(method, path, json=body)
        return answer.status_code, answer.json()


def test_readers_in_one_process_move_across_a_changed_schema_without_a_mixed_answer(tmp_path: Path) -> None:
    config = config_in(tmp_path, CLICKS, NET_ALONE, BEFORE)
    learn_numbers(config, 0, 3)
    world, model = (
        World(SimpleNamespace(path=config.log.path)),
        HotModel(config.log.path, wait_seconds=DEADLINE_SECONDS),
    )
    client = world.serve()
    world.served(client, model.version)
    readers = [Reader(ServerHere(client), of) for of in (model, None)]
    try:
        wait_until(lambda: all(reader.seen for reader in readers), "answers of the old schema")
        after = config_in(tmp_path, CLICKS, NET_ALONE, AFTER, {"schema": {"categorical": ["user_id", "item_id"]}})
        newest = learn_numbers(after, 3, 5)
        assert newest >> 32 == 2
        wait_until(lambda: all((2, 12) in reader.seen for reader in readers), "answers of the new schema")
        wait_until(lambda: model.version == newest, "the newest version")
        assert client.get("/v1/embeddings/genres/3").status_code == 404
    finally:
        for reader in readers:
            reader.stop()
        model.close()
        world.close()
    for reader in readers:
        assert not reader.failures, reader.failures[:5]
        assert reader.seen <= {(1, 8), (2, 12), (2, 8) if reader.model is None else (1, 12)}


@pytest.mark.skipif(not IS_LONG, reason="part of `make torture`: a dozen processes take a minute")
def test_followers_move_across_a_changed_schema_without_a_restart_and_without_a_mixed_answer(
    workspace: Workspace,
) -> None:
    """The long form, with processes, commands and the way back."""
    workspace.start_broker()
    workspace.produce(make_clicks(600))
    workspace.train_until_end()
    workspace.start_server()
    models = [HotModel(str(workspace.log)), HotModel(workspace.url)]
    readers = [Reader(workspace, model) for model in (*models, None)]
    try:
        wait_until(lambda: all(reader.seen for reader in readers), "answers of the old schema")
        counts = [read_view(workspace.log).row_info(0, user)["count"] for user in range(20)]
        workspace.configure(AFTER)
        checked = workspace.run("check").stdout
        assert "keeps counts, last-seen times and admission of the rows of user_id" in checked
        assert "begins rows of genre" in checked
        assert "drops rows of genres" in checked
        workspace.train_until_end()  # a silent stream: the changed schema is all that is new
        newest = read_view(workspace.log)
        assert newest.version >> 32 == 2
        assert newest.meta.samples_trained == 600
        assert [newest.row_info(0, user)["count"] for user in range(20)] == counts
        assert newest.schema.number("genre") == 4
        wait_until(lambda: all((2, 12) in reader.seen for reader in readers), "answers of the new schema")
        wait_until(lambda: all(model.version == newest.version for model in models), "the newest version")
        assert workspace.request("GET", "/v1/embeddings/genres/g1", token=None)[0] == 404
    finally:
        for reader in readers:
            reader.stop()
        for model in models:
            model.close()
    for reader in readers:
        assert not reader.failures, reader.failures[:5]
        # the two calls of one pass may meet two versions; each is of one schema
        assert reader.seen <= {(1, 8), (2, 12), (2, 8) if reader.model is None else (1, 12)}
    shown = workspace.run("versions", "show", "2.0").stdout
    assert "dropped   rows of genres" in shown
    assert "changed schema" in workspace.run("versions", "list").stdout
    assert "cannot be compared" in workspace.run("versions", "diff", "oldest", "latest").stderr
    workspace.produce([json.dumps(json.loads(value) | {"liked": 1}).encode() for value in make_clicks(100, seed=3)])
    assert workspace.train_until_end()["samples_trained"] == 700
    verified = workspace.run("versions", "verify", "--deep")
    assert verified.returncode == 0, verified.stdout

    workspace.configure(BEFORE)
    assert workspace.train_until_end()["samples_trained"] == 700
    last_old = json.loads(workspace.run("versions", "show", "4.0", "--json").stdout)
    assert last_old["change"]["from"] >> 32 == 3
    older = json.loads(workspace.run("versions", "show", "2.0", "--json").stdout)["change"]["from"]
    rolled_back = workspace.run("versions", "rollback", str(older))
    assert rolled_back.returncode == 0, rolled_back.stderr
    assert "kept     rows of genres" in rolled_back.stdout
    back = read_view(workspace.log)
    assert back.meta.samples_trained == 600
    assert [back.row_info(0, user)["count"] for user in range(20)] == counts
    assert workspace.train_until_end()["samples_trained"] == 700  # the records since then are learned again
