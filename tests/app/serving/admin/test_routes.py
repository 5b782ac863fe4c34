"""Commands over HTTP, with the admin token."""

import threading

import pytest

from springtide.app.serving.lookup import routes
from springtide.app.version_log.commands.queue import CommandQueue

USER = 0
ADMIN = {"Authorization": "Bearer admin-secret"}
FORGET = {"feature": "user_id", "id": 5}


@pytest.fixture
def client(world, monkeypatch):
    monkeypatch.setenv("SPRINGTIDE_TOKENS", "admin=admin-secret")
    world.log.start_epoch()
    world.log.write_status(commands=["forget"])
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]})
    made = world.serve()
    world.served(made, number)
    return made


def test_a_submitted_command_is_a_file_for_the_trainer_and_has_a_status(world, client):
    accepted = client.post("/v1/forget", json=FORGET, headers=ADMIN)
    assert accepted.status_code == 202
    command_id = accepted.json()["command"]
    assert accepted.headers["location"] == f"/v1/commands/{command_id}"
    assert accepted.json()["note"] == "the trainer is running and executes the command with its next version"
    assert client.get(accepted.headers["location"], headers=ADMIN).json()["state"] == "waiting"
    (command,) = CommandQueue(world.log.path, 1, {}).claim()
    assert (command.id, command.kind, command.body["keys"]) == (command_id, "forget", [FORGET])
    assert client.get(accepted.headers["location"], headers=ADMIN).json()["state"] == "claimed"


def test_an_unknown_command_is_404(client):
    answer = client.get("/v1/commands/1234", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_command")


def test_commands_are_accepted_while_a_neighbor_search_runs(client, monkeypatch):
    searching, finish = threading.Event(), threading.Event()

    def endless_search(*_, **__):
        searching.set()
        assert finish.wait(300)
        return []

    monkeypatch.setattr(routes, "find_neighbors", endless_search)
    search = threading.Thread(target=client.get, args=("/v1/embeddings/user_id/1/neighbors",))
    search.start()
    try:
        assert searching.wait(300)
        accepted = client.post("/v1/forget", json=FORGET, headers=ADMIN)
        assert accepted.status_code == 202
        assert client.get(accepted.headers["location"], headers=ADMIN).status_code == 200
    finally:
        finish.set()
        search.join()
