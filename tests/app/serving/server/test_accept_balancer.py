import asyncio
import socket

import pytest

from springtide.app.serving.server.accept_balancer import AcceptBalancer, ConnectionCounts
from tests.support.waiting import wait_until_async


class Protocol(asyncio.Protocol):
    def __init__(self, own):
        self._own = own

    def connection_made(self, transport):
        self._own.append(transport)


def started(counts, worker, listener, own):
    balancer = AcceptBalancer(counts, worker)
    balancer.start(listener, lambda: len(own), lambda: Protocol(own))
    return balancer


@pytest.fixture
def workers():
    """A listener that two workers have, connections for their guests, and who knocks."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = [listener, listener.dup()]
    connections = [[], []]

    def connect(number):
        for _ in range(number):
            made.append(socket.create_connection(listener.getsockname()))

    yield made[:2], connections, connect
    for one in made:
        one.close()


def close(balancers, connections):
    for balancer in balancers:
        balancer.close()
    for transport in [transport for own in connections for transport in own]:
        transport.close()


def test_simultaneous_connections_are_spread_evenly(workers, monkeypatch):
    # on a busy machine the other worker may take longer than 2 ms to accept its share
    monkeypatch.setattr("springtide.app.serving.server.accept_balancer.DEFER_SECONDS", 0.2)
    listeners, connections, connect = workers

    async def scenario():
        counts = ConnectionCounts()
        balancers = [started(counts, worker, listeners[worker], connections[worker]) for worker in (0, 1)]
        connect(8)
        await wait_until_async(lambda: sum(map(len, connections)) == 8)
        assert [len(own) for own in connections] == [4, 4]
        balancers[0].close()
        connect(3)
        await wait_until_async(lambda: sum(map(len, connections)) == 11)
        assert [len(own) for own in connections] == [4, 7]
        close(balancers, connections)

    asyncio.run(scenario())


def test_a_connection_not_accepted_by_the_emptiest_worker_is_accepted_by_another(workers):
    listeners, connections, connect = workers

    async def scenario():
        counts = ConnectionCounts()
        counts.set(7, 0)  # it hangs
        balancer = started(counts, 0, listeners[0], connections[0])
        connect(3)
        await wait_until_async(lambda: len(connections[0]) == 3)
        counts.remove(7)
        assert counts.lowest() == 3
        close([balancer], connections)

    asyncio.run(scenario())
