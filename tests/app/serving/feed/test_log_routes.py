"""The stream of version records, and the records kept in memory for it."""

import contextlib
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from springtide.app.serving.feed.log_routes import LogReader
from springtide.app.serving.model.recent_records import RecordCache
from springtide_client.errors import LogError
from springtide_client.follow.follower import Follower
from springtide_client.format.records import Head, Record, ShardEntry, VersionMeta, encode_pieces, encode_shard_pieces
from springtide_client.http.http_log import HttpLog
from springtide_client.keys import hash_keys
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import shard_segment_name
from springtide_client.model.view import View
from springtide_client.rows.hash_range import ALL_KEYS, NO_KEYS, HashRange, owners_of
from tests.app.serving.conftest import USER, World
from tests.support.logs import HandWrittenLog, Tensors
from tests.support.records import decode_record
from tests.support.toy_model import TOY_SCHEMA, toy_archive
from tests.support.waiting import wait_until


class SlowCursor:
    """A read that lasts until `release`; records whether the cursor was closed meanwhile."""

    def __init__(self) -> None:
        self.reading, self.release = threading.Event(), threading.Event()
        self.head, self.num_closed, self.closed_during_read = Head(1, 1), 0, False

    def read(self, limit_bytes: int) -> list[Record]:
        self.reading.set()
        self.release.wait()
        self.closed_during_read = self.num_closed > 0
        raise LogError("over")

    def close(self) -> None:
        self.num_closed += 1


def test_a_reader_closed_during_a_read_is_closed_by_the_reading_thread(tmp_path: Path) -> None:
    reader, cursor = LogReader(LogDirectory(tmp_path), Head(1, 1)), SlowCursor()
    reader._cursor = cursor

    def read() -> None:
        with contextlib.suppress(LogError):
            reader.read(Head(1, 1), 1)

    thread = threading.Thread(target=read)
    thread.start()
    cursor.reading.wait()
    reader.close()
    assert cursor.num_closed == 0
    cursor.release.set()
    thread.join()
    assert (cursor.num_closed, cursor.closed_during_read) == (1, False)
    assert reader.read(Head(1, 1), 1) == []


def make(number: int, parent: int, size: int = 10) -> Record:
    return Record(epoch=1, number=number, parent=parent, checksum=number * 1000, payload=bytes(size))


def test_records_after_a_version_are_given_in_order() -> None:
    recent = RecordCache()
    for number in range(1, 6):
        recent.add(make(number, (number - 1) * 1000))
    assert [record.number for record in recent.after(Head(2, 2000), 1 << 20)] == [3, 4, 5]
    assert [record.number for record in recent.after(Head(2, 2000), 1)] == [3]
    assert recent.after(Head(5, 5000), 1 << 20) == []
    assert recent.after(Head(2, 999), 1 << 20) == []  # another version of that number


def test_the_oldest_records_are_dropped_and_repeated_records_count_once() -> None:
    recent = RecordCache(max_bytes=3 * make(1, 0).num_bytes)
    for number in (1, 2, 2, 3, 4):
        recent.add(make(number, (number - 1) * 1000))
    assert recent.after(Head(0, 0), 1 << 20) == []
    assert [record.number for record in recent.after(Head(1, 1000), 1 << 20)] == [2, 3, 4]


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


NUM_RANKS, NUM_USERS = 4, 200
USERS, IDS = np.full(NUM_USERS, USER, np.uint16), np.arange(NUM_USERS)


class RankedLog(HandWrittenLog):
    """Written by several ranks: each writes the rows of its keys."""

    def write_record(self, number: int, meta: VersionMeta, tensors: Tensors) -> int:
        owners = owners_of(hash_keys(tensors["rows.feature"], tensors["rows.id"]), NUM_RANKS)
        columns = {name: array for name, array in tensors.items() if name.startswith("rows.")}
        own = [{name: array[owners == rank] for name, array in columns.items()} for rank in range(NUM_RANKS)]
        entries = []
        for rank in range(1, NUM_RANKS):
            pieces, checksum = encode_shard_pieces(self.epoch, number, rank, own[rank])
            with (self.path / shard_segment_name(self.epoch, rank, 0)).open("ab") as file:
                file.writelines(pieces)
            entries.append(ShardEntry(rank, checksum))
        pieces, checksum = encode_pieces(self.epoch, number, self.checksum, meta, tensors | own[0], entries)
        with self.segment.open("ab") as file:
            file.writelines(pieces)
        return checksum


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    """A log of four ranks, its base, and clients of a server of all rows and of one of part 1/2."""
    made = World(RankedLog(tmp_path_factory.mktemp("ranked") / "log", TOY_SCHEMA, toy_archive(), wall_clock=True))
    base = made.log.number
    made.log.publish({(USER, int(i)): [i, 1, 2, 3] for i in IDS})
    clients = made.serve(), made.serve(range="1/2")
    for client in clients:
        made.served(client, made.log.number)
    yield made, base, clients
    made.close()


@pytest.mark.parametrize(("text", "expected"), [("1/1", [1, 2, 3]), ("2/2", [2, 3]), ("1/4", []), ("none", [])])
def test_the_stream_has_the_shard_records_that_are_asked_for(ranked, text, expected) -> None:
    _, base, clients = ranked
    for client in clients:
        received, found = bytearray(), []
        with client.stream("GET", f"/v1/log?after={base}&range={text}") as answer:
            assert answer.status_code == 200
            pieces = answer.iter_raw()
            while len(found) < 1 + len(expected):
                received += next(pieces)
                found, end = [], 0
                while (decoded := decode_record(bytes(received), end)) is not None:
                    found.append(decoded[0])
                    end = decoded[1]
        assert [record.parent for record in found[1:]] == expected
        assert len(received) == end
        assert client.get(f"/v1/log?after={base}&range=5/4").status_code == 422


@pytest.mark.parametrize("own", [HashRange(3, 4), HashRange(2, 2), NO_KEYS])
def test_a_follower_of_a_part_has_its_rows_from_any_server(ranked, own, tmp_path) -> None:
    world, _, clients = ranked
    held = own.holds(hash_keys(USERS, IDS))
    for number, client in enumerate(clients):
        log = HttpLog(str(client.base_url).rstrip("/"), cache_dir=tmp_path / str(number), hash_range=own)
        follower = Follower(log, hash_range=own)
        try:
            for step in (4, 5):
                version = world.log.publish({(USER, int(i)): [i, step, 2, 3] for i in IDS})
                view = view_at(follower, version)
                rows, status = view.lookup(USERS, IDS)
                assert (status == 0).tolist() == held.tolist()
                assert (rows[held, 1] == step).all()
        finally:
            follower.close()
            log.close()


def test_parts_that_share_a_folder_of_downloads_leave_each_other_s_base(ranked, tmp_path) -> None:
    _, _, (client, _) = ranked
    logs = [
        HttpLog(str(client.base_url).rstrip("/"), cache_dir=tmp_path, hash_range=own)
        for own in (HashRange(1, 2), HashRange(2, 2), ALL_KEYS)
    ]
    try:
        paths = [log.newest_base() for log in logs]
        written = [path.stat().st_mtime_ns for path in paths if path is not None]
        assert [log.newest_base() for log in logs] == paths
        assert [path.stat().st_mtime_ns for path in paths if path is not None] == written
        assert len(written) == 3
    finally:
        for log in logs:
            log.close()


def view_at(follower: Follower, version: int) -> View:
    wait_until(lambda: follower.poll() is not None and follower.view.version == version)
    assert follower.view is not None
    return follower.view
