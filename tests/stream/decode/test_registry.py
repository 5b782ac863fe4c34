"""A schema registry that fails is waited for: nothing is lost, nothing becomes a dead letter, the status says why."""

import io
import json
import time

import fastavro
import numpy as np
import pytest

from springtide.stream.decode import registry as registry_module
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.decode.registry import RegistryUnavailableError, SchemaCache, SchemaRegistry, UnknownSchemaError
from tests.support.ports import free_port
from tests.support.schema_registry import RegistryServer, running_registry
from tests.support.waiting import wait_until

CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": name, "type": "long"} for name in ("user_id", "click", "ts")],
}


def click(user: int, schema_id: int = 1) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, CLICK, {"user_id": user, "click": user % 2, "ts": int(time.time() * 1000)})
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


@pytest.fixture
def server():
    with running_registry() as server:
        server.add(1, json.dumps(CLICK))
        yield server


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (500, "responded 500"),
        (429, "responded 429"),
        (401, "put user:password into"),
        ("silence", "cannot be reached"),
        ("html", "responded 404"),
    ],
)
def test_reading_waits_for_a_registry_that_fails_and_loses_nothing(
    testbed, server: RegistryServer, monkeypatch, failure, reason
) -> None:
    monkeypatch.setattr(registry_module, "READ_SECONDS", 0.2)
    server.failure = failure
    testbed.create(2)
    testbed.produce([click(user) for user in range(50)], partition=0)
    testbed.produce([click(user) for user in range(50, 80)], partition=1)
    source = testbed.source(format="avro", registry_url=server.url)
    source.start()
    wait_until(lambda: len(server.requests) >= 3 and source.status.state == "waiting", lambda: source.status.reason)
    assert reason in source.status.reason
    assert "\n" not in source.status.reason
    assert source.status.waiting_seconds > 0
    assert source.poll(0) == []
    server.failure = None
    columns = testbed.read(source, 80)
    assert sorted(testbed.users(columns)) == list(range(80))
    assert [letter for part in columns for letter in part.dead_letters] == []
    wait_until(lambda: source.status.state == "reading")


def test_a_source_closes_while_it_waits_for_a_registry(testbed) -> None:
    testbed.create()
    testbed.produce([click(1)])
    url = f"http://127.0.0.1:{free_port()}"
    source = testbed.source(format="avro", registry_url=url)
    source.start()
    wait_until(lambda: "schema registry" in source.status.reason)
    assert f"{url} cannot be reached" in source.status.reason
    source.close()
    assert source.status.state == "closed"


def test_a_user_is_read_from_a_file_and_never_shown(server: RegistryServer, tmp_path) -> None:
    server.user = "ann:top secret"
    path = tmp_path / "auth"
    registry = SchemaRegistry(server.url, path)
    errors = []
    for text in (None, "ann:wrong\n", ""):
        if text is not None:
            path.write_text(text)
        with pytest.raises(RegistryUnavailableError) as caught:
            registry.schema(1)
        errors.append(str(caught.value))
    assert "first line is user:password" in errors[0]
    assert "responded 401" in errors[1]
    assert not any("wrong" in error for error in errors)
    path.write_text("ann:top secret\n")
    assert json.loads(registry.schema(1).schema) == CLICK


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://ann:secret@host:8081", "holds a password"),
        ("host:8081", "must be the URL"),
        ("ftp://host", "must be the URL"),
    ],
)
def test_a_url_that_is_none_or_holds_a_password_is_refused(url, problem) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        DecodeConfig(format="avro", registry_url=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"format": "avro"}, "needs either schema_file"),
        ({"format": "avro", "schema_file": "a", "registry_url": "http://h"}, "needs either schema_file"),
        ({"format": "json", "schema_file": "a"}, 'schema_file is of format = "avro": leave it out with "json"'),
        ({"format": "avro", "schema_file": "a", "registry_auth_file": "b"}, "registry_auth_file needs registry_url"),
    ],
)
def test_settings_that_contradict_the_format_are_refused(options, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        DecodeConfig(**options)


def test_an_unknown_id_is_asked_for_again_later() -> None:
    now, asked = [0.0], []

    def make(schema_id: int) -> str:
        asked.append(schema_id)
        if now[0] < 5:
            raise UnknownSchemaError("not there yet")
        return "schema"

    cache = SchemaCache(make, clock=lambda: now[0])
    for seconds in (0.0, 4.0, 5.0, 6.0):
        now[0] = seconds
        cache.prepare(np.array([7, 7]))
    assert asked == [7, 7]
    assert cache.get(7) == "schema"
