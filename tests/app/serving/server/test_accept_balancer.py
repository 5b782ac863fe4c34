import asyncio
import socket

import pytest

from app.serving.server.accept_balancer import AcceptBalancer, ConnectionCounts
from tests.support.waiting import wait_until_async


class Guest(asyncio.Protocol):
    def __init__(self, room):
        self._room = room

    def connection_made(self, transport):
        self._room.append(transport)


def opened(crowd, worker, listener, room):
    door = AcceptBalancer(crowd, worker)
    door.start(listener, lambda: len(room), lambda: Guest(room))
    return door


@pytest.fixture
def house():
    """A listener that two workers have, rooms for their guests, and who knocks."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = [listener, listener.dup()]
    rooms = [[], []]

    def knock(number):
        for _ in range(number):
            made.append(socket.create_connection(listener.getsockname()))

    yield made[:2], rooms, knock
    for one in made:
        one.close()


def close(doors, rooms):
    for door in doors:
        door.close()
    for transport in [transport for room in rooms for transport in room]:
        transport.close()


def test_simultaneous_connections_are_spread_evenly(house):
    listeners, rooms, knock = house

    async def scenario():
        crowd = ConnectionCounts()
        doors = [opened(crowd, worker, listeners[worker], rooms[worker]) for worker in (0, 1)]
        knock(8)
        await wait_until_async(lambda: sum(map(len, rooms)) == 8)
        assert [len(room) for room in rooms] == [4, 4]
        doors[0].close()
        knock(3)
        await wait_until_async(lambda: sum(map(len, rooms)) == 11)
        assert [len(room) for room in rooms] == [4, 7]
        close(doors, rooms)

    asyncio.run(scenario())


def test_a_connection_not_accepted_by_the_emptiest_worker_is_accepted_by_another(house):
    listeners, rooms, knock = house

    async def scenario():
        crowd = ConnectionCounts()
        crowd.set(7, 0)  # it hangs
        door = opened(crowd, 0, listeners[0], rooms[0])
        knock(3)
        await wait_until_async(lambda: len(rooms[0]) == 3)
        crowd.remove(7)
        assert crowd.lowest() == 3
        close([door], rooms)

    asyncio.run(scenario())
