"""A hand-written log, a server that holds everything, the servers of two parts, and a router that holds nothing."""

# N ids
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from springtide_client.keys import SHARED_ROW_OFFSET, hash_keys
from springtide_client.rows.hash_range import owners_of
from tests.app.serving.conftest import ITEM, USER, World, new_log
from tests.support.ports import free_port

USERS = 300


class Servers(NamedTuple):
    """The clients of all servers over one log."""

    world: World
    whole: httpx.Client
    first: httpx.Client  # part 1/2, knows the others
    second: httpx.Client  # part 2/2, a router too
    alone: httpx.Client  # part 2/2 again, knows no other
    router: httpx.Client  # holds no rows
    urls: list[str]  # of both parts


def fill(log, num_users: int = USERS) -> None:
    """Write a base, and versions with changed and forgotten rows, rows that ids share, and ids seen too seldom."""
    log.admission = {str(ITEM): 3}
    log.start_epoch()
    log.publish({(USER, i): [i, 1, 2, 3] for i in range(num_users)})
    log.publish({(ITEM, i): [i, -1, 0, 0] for i in range(40)} | {(ITEM + SHARED_ROW_OFFSET, 0): [9, 9, 9, 9]})
    log.write_base()
    log.publish({(USER, i): [i, 7, 7, 7] for i in range(0, num_users, 3)}, strings=[(ITEM, "shoe")])
    log.publish(forgotten=[(USER, i) for i in range(0, num_users, 7)], seen={(ITEM, i): 1 for i in range(40, 50)})


def owners(feature: int, ids) -> list[int]:
    """Which of the two parts holds each id, from 0."""
    features_N = np.full(len(ids), feature, np.uint16)
    return owners_of(hash_keys(features_N, np.array(ids, np.int64)), 2).tolist()


def raw(client: httpx.Client, feature: str, ids, **headers: str) -> httpx.Response:
    """Look ids up as raw bytes."""
    sent = {"content-type": "application/octet-stream", **headers}
    return client.post(f"/v1/embeddings/{feature}", content=np.array(ids, "<i8").tobytes(), headers=sent)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    world = World(new_log(tmp_path_factory.mktemp("parts") / "log"))
    fill(world.log)
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    made = Servers(
        world=world,
        whole=world.serve(),
        first=world.serve(port=ports[0], range="1/2", parts=urls),
        second=world.serve(port=ports[1], range="2/2", parts=urls, router=True),
        alone=world.serve(range="2/2"),
        router=world.serve(parts=urls),
        urls=urls,
    )
    for client in made[1:6]:
        world.served(client, world.log.number)
    yield made
    world.close()
