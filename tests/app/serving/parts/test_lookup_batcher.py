"""Look-ups of a router that go to the parts together: answered as by one server, whatever one of the parts does."""

import numpy as np
import pytest

from springtide.app.serving.http.fast_path import LATER
from springtide.app.serving.lookup.batch_lookup import KnownLookups
from tests.app.serving.conftest import ITEM, USER, World, new_log
from tests.app.serving.parts.conftest import USERS, fill, owners, raw
from tests.app.serving.parts.held_server import HeldServer
from tests.app.serving.raw_connection import JSON, RAW, Connection, request
from tests.support.ports import free_port
from tests.support.waiting import wait_until

IDS = list(range(-3, USERS + 3))
OF_FIRST = [i for i, owner in zip(IDS, owners(USER, IDS), strict=True) if owner == 0]


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A whole server, a router, and the relay between the router and the second part."""
    world = World(new_log(tmp_path_factory.mktemp("held") / "log"))
    fill(world.log)
    ports = [free_port(), free_port()]
    for number, port in enumerate(ports, 1):
        world.served(world.serve(port=port, range=f"{number}/2"), world.log.number)
    relay = HeldServer("127.0.0.1", ports[1])
    router = world.serve(parts=[f"http://127.0.0.1:{port}" for port in (ports[0], relay.port)])
    whole = world.serve()
    for client in (whole, router):
        world.served(client, world.log.number)
    yield world, whole, router, relay
    relay.close()
    world.close()


@pytest.fixture
def later(monkeypatch):
    """What a router said of each look-up whose head it knows."""
    said = []
    answer = KnownLookups.answer

    def watched(self, options, body, later):
        content = answer(self, options, body, later)
        if self._batcher is not None:
            said.append(content)
        return content

    monkeypatch.setattr(KnownLookups, "answer", watched)
    return said


@pytest.fixture
def take_fast_path(connect, later):
    """Makes connections whose requests like the first one take the fast path."""

    def taken(router, asked: bytes) -> Connection:
        connection = connect(router)

        def is_fast() -> bool:
            assert connection.exchange(asked)[0] == 200
            return later[-1:] == [LATER]

        wait_until(is_fast)
        return connection

    return taken


def body(ids, kind: str) -> bytes:
    return np.array(ids, "<i8").tobytes() if kind == RAW else b'{"ids":%s}' % str(list(ids)).encode()


def test_look_ups_of_many_connections_at_once_get_the_answers_of_one_server(
    held, later, connect, take_fast_path
) -> None:
    _, whole, router, _ = held
    asked, expected, connections = [], [], []
    for number in range(12):
        kind, feature = (RAW, JSON)[number % 2], ("user_id", "item_id", "user_id")[number % 3]
        if kind == RAW and feature == "item_id":
            kind = JSON  # its ids are strings
        ids = IDS[number : number + 40 * (number % 4)]
        asked.append(request(body(ids, kind), kind=kind, feature=feature, extra=[f"X-Number: {number % 3}"]))
        expected.append(connect(whole).exchange(asked[-1])[2])
        connections.append(take_fast_path(router, asked[-1]))
    for _ in range(5):
        later.clear()
        for connection, content in zip(connections, asked, strict=True):
            connection.send(content)
        for connection, content in zip(connections, expected, strict=True):
            assert connection.receive()[2] == content
        assert later.count(LATER) == len(asked)


def test_a_slow_part_delays_nobody_who_does_not_need_it(held, connect, take_fast_path) -> None:
    _, whole, router, relay = held
    both, first = request(body(IDS, RAW)), request(body(OF_FIRST, RAW))
    waiting, other = take_fast_path(router, both), take_fast_path(router, first)
    expected = [connect(whole).exchange(asked) for asked in (both, first)]
    relay.hold()
    waiting.send(both)
    other.send(first)
    waiting.send(first)  # it is answered after the one before
    assert other.receive()[2] == expected[1][2]
    gone = take_fast_path(router, first)
    gone.send(both)
    gone.socket.close()
    for _ in range(3):
        assert other.exchange(first)[2] == expected[1][2]
    relay.release()
    assert [waiting.receive()[2] for _ in range(2)] == [expected[0][2], expected[1][2]]
    assert raw(router, "user_id", IDS).content == expected[0][2]


def test_the_newest_version_is_asked_for_and_rows_of_several_features_come_together(held, take_fast_path) -> None:
    world, whole, router, _ = held
    asked = [request(body([i, i + 1], RAW), extra=["X-Number: 7"]) for i in range(20)]
    connections = [take_fast_path(router, each) for each in asked]
    for value in (5.0, 6.0):
        number = world.log.publish({(USER, i): [value] * 4 for i in range(30)} | {(ITEM, 3): [value] * 4})
        for client in (whole, router):
            world.served(client, number)
        for connection, content in zip(connections, asked, strict=True):
            connection.send(content)
        for connection in connections:
            status, headers, content = connection.receive()
            assert (status, int(headers["x-springtide-version"])) == (200, number)
            assert np.frombuffer(content[:32], "<f4").tolist() == [value] * 8
