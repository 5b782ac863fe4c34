import socket

import numpy as np
from springtide_client.follow.follower import Follower
from springtide_client.http.http_log import HttpLog

from tests.support.records import decode_record
from tests.support.waiting import wait_until

USER = 0


def test_the_log_stream_has_the_bytes_of_the_segments(world):
    world.log.start_epoch()
    base = world.log.number
    first = world.log.publish({(USER, 1): [1, 2, 3, 4]})
    client = world.serve()
    world.served(client, first)
    segment = next(world.log.path.glob("seg-*.log"))
    received = bytearray()
    with client.stream("GET", f"/v1/log?after={base}") as answer:
        assert answer.status_code == 200
        pieces = answer.iter_raw()
        while len(received) < segment.stat().st_size:
            received += next(pieces)
        second = world.log.publish({(USER, 1): [4, 3, 2, 1]})
        while len(received) < segment.stat().st_size:
            received += next(pieces)
    assert bytes(received) == segment.read_bytes()
    record, end = decode_record(received, 0)
    assert record.number == first
    assert decode_record(received, end)[0].number == second
    for unknown in (0, base + 99):
        gone = client.get(f"/v1/log?after={unknown}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "gone")
    # the disconnected client is no longer counted
    wait_until(lambda: "springtide_open_streams 0" in client.get("/metrics").text)


def test_a_client_follows_over_http(world, tmp_path):
    world.log.start_epoch()
    world.log.publish({(USER, 1): [1, 2, 3, 4]})
    client = world.serve()
    world.served(client, world.log.number)
    log = HttpLog(str(client.base_url).rstrip("/"), cache_dir=tmp_path / "cache")
    follower = Follower(log)
    try:
        for step in range(5):
            number = world.log.publish({(USER, 1): [step, 0, 0, 0]})
            wait_until(lambda number=number: follower.poll() is not None and follower.view.version == number)
            rows, status = follower.view.lookup(np.array([USER], np.uint16), np.array([1], np.int64))
            assert (rows[0, 0], status[0]) == (step, 0)
    finally:
        follower.close()
        log.close()


def test_streams_of_disconnected_clients_are_closed(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    address = (client.base_url.host, client.base_url.port)
    after = f"after={world.log.number}"
    for count in range(120):
        path = ("/v1/events", f"/v1/log?{after}", f"/v1/versions/latest?{after}&wait_seconds=60")[count % 3]
        with socket.create_connection(address) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    wait_until(lambda: "springtide_open_streams 0" in client.get("/metrics").text)


def test_open_streams_are_limited_and_end_with_the_server(world):
    world.log.start_epoch()
    client = world.serve(max_streams=1)
    world.served(client, world.log.number)
    with client.stream("GET", f"/v1/log?after={world.log.number}") as answer:
        assert answer.status_code == 200
        refused = client.get("/v1/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        thread, until = world._servers[0]
        until.set()
        assert list(answer.iter_raw()) == []
        thread.join(timeout=300)
        assert not thread.is_alive()
