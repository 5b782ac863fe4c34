"""Commands over HTTP, with the admin token."""

import threading

import pytest

from springtide.app.serving.admin import check_supported, parse_forget, parse_rollback, parse_table_limits
from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.lookup import routes
from springtide.app.version_log.commands.queue import CommandQueue
from springtide.app.version_log.trainer_status import TrainerStatus
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user", "item"), sequence=("last",), share={"last": "item"})


def test_a_kind_that_the_trainer_does_not_support_is_501():
    for status in (TrainerStatus(), TrainerStatus(commands=["limits"])):
        with pytest.raises(ApiError) as caught:
            check_supported("forget", status)
        assert (caught.value.status, caught.value.code) == (501, "not_supported_yet")
    check_supported("forget", TrainerStatus(commands=["forget"]))


@pytest.mark.parametrize(
    "body",
    [
        {"feature": "user_id", "id": 5},
        {"feature": "user_id", "ids": [5]},
        {"keys": [{"feature": "user_id", "id": 5}]},
    ],
)
def test_keys_to_forget_have_three_forms(body):
    assert parse_forget(body, ("user_id",)) == {"keys": [{"feature": "user_id", "id": 5}]}


@pytest.mark.parametrize(
    "body",
    [
        5,
        [],
        {},
        {"keys": []},
        {"feature": "user_id"},
        {"feature": "x", "id": 1},
        {"feature": "user_id", "id": None},
        {"feature": "user_id", "id": []},
        {"feature": "user_id", "ids": 3},
        {"keys": [3]},
    ],
)
def test_malformed_keys_are_rejected(body):
    with pytest.raises(ApiError):
        parse_forget(body, ("user_id",))


def test_a_rollback_names_a_version():
    assert parse_rollback({"version": 4}) == {"version": 4}
    assert parse_rollback({"version": "before-relaunch"}) == {"version": "before-relaunch"}
    for body in ({}, [], {"version": ""}, {"version": True}, {"version": -1}):
        with pytest.raises(ApiError):
            parse_rollback(body)


def test_sizes_of_limits_become_bytes():
    body = {"device_bytes": "2MiB", "lr": 1, "features": {"item": {"ttl_seconds": 60, "quota_bytes": None}}}
    assert parse_table_limits(body, SCHEMA) == {
        "limits": {"device_bytes": 2 << 20, "lr": 1.0, "features": {"item": {"ttl_seconds": 60.0, "quota_bytes": None}}}
    }


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "names a limit"),
        ([], "names a limit"),
        ({"dim": 4}, "dim cannot be changed"),
        ({"device_bytes": "2 apples"}, "device_bytes .*apples"),
        ({"device_bytes": None}, "device_bytes must be a size"),
        ({"lr": -1}, "lr must be a finite number"),
        ({"lr": "fast"}, "lr must be a finite number"),
        ({"features": 3}, "features must be an object"),
        ({"features": {"item": {}}}, "features.item must be an object"),
        ({"features": {"itme": {"ttl_seconds": 3}}}, "no feature 'itme'.*user, item"),
        ({"features": {"last": {"ttl_seconds": 3}}}, "last shares the rows of item"),
        ({"features": {"item": {"ttl": 3}}}, "features.item.ttl cannot be changed.*ttl_seconds"),
        ({"features": {"item": {"ttl_seconds": 0}}}, "ttl_seconds must be a number above 0"),
        ({"features": {"item": {"min_count": 1.5}}}, "features.item.min_count must be a whole number"),
        ({"features": {"item": {"min_count": 1000}}}, "min_count must be a whole number from 1 to 255"),
    ],
)
def test_invalid_limits_are_rejected_with_a_hint(body, says):
    with pytest.raises(ApiError, match=says) as caught:
        parse_table_limits(body, SCHEMA)
    assert caught.value.status == 400
    assert "ttl_seconds" in caught.value.hint


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
