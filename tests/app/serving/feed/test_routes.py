"""What followers ask for: versions, the log, bases, snapshots, events."""

import json
import shutil
import socket
import threading

import msgspec
import numpy as np
import pytest
from springtide_client.follow.follower import Follower
from springtide_client.format.records import decode_record
from springtide_client.format.tensors import decode_tensors
from springtide_client.http.http_log import HttpLog
from springtide_client.keys import hash_string
from springtide_client.log.directory import LogDirectory

from app.serving.feed.snapshot_cache import SnapshotCache
from app.serving.http.errors import ApiError
from app.version_log.export.snapshot_file import view_at_version
from app.version_log.read.id_dictionary import decode_strings
from tests.support.waiting import wait_until

USER, ITEM = 0, 1


def test_versions_are_listed_and_waited_for(world):
    world.log.start_epoch()
    base = world.log.number
    numbers = [world.log.publish(samples_trained=count) for count in range(5)]
    client = world.serve()
    world.served(client, numbers[-1])
    page = client.get("/v1/versions?limit=3")
    assert [entry["version"] for entry in page.json()["versions"]] == numbers[:1:-1]
    rest = client.get(f"/v1/versions?limit=9&before={page.json()['next_before']}").json()
    assert [entry["version"] for entry in rest["versions"]][:2] == [numbers[1], numbers[0]]
    assert rest["next_before"] is None
    one = client.get(f"/v1/versions/{numbers[1]}")
    assert one.json()["samples_trained"] == 1
    assert one.json()["name"] == "1.2"
    assert one.headers["etag"] == f'"{one.json()["checksum"]}"'
    assert client.get(f"/v1/versions/{numbers[2]}").json()["parent"] == one.json()["checksum"]
    again = client.get(f"/v1/versions/{numbers[1]}", headers={"if-none-match": one.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/v1/versions/7").status_code == 410
    assert client.get("/v1/versions/latest").json()["version"] == numbers[-1]
    assert client.get(f"/v1/versions/latest?after={base}").json()["version"] == numbers[-1]
    assert client.get(f"/v1/versions/latest?after={numbers[-1]}").status_code == 204
    assert client.get(f"/v1/versions/latest?after={numbers[-1]}&wait_seconds=0.05").status_code == 204
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(client.get(f"/v1/versions/latest?after={numbers[-1]}&wait_seconds=20"))
    )
    asking.start()
    wait_until(lambda: "springtide_open_streams 1" in client.get("/metrics").text)
    number = world.log.publish()
    asking.join()
    assert answers[0].json()["version"] == number


def test_a_new_log_has_its_base_as_a_version(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    assert client.get("/v1/versions/latest").json()["version"] == world.log.number


def test_the_log_is_a_live_stream_of_its_own_bytes(world):
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
    # whoever left is no longer counted
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


def test_a_base_is_sent_file_by_file(world):
    world.log.start_epoch()
    world.log.publish({(USER, 1): [1, 2, 3, 4]})
    path = world.log.write_base()
    client = world.serve()
    world.served(client, world.log.number)
    latest = client.get("/v1/bases/latest")
    assert latest.content == (path / "manifest.json").read_bytes()
    etag = latest.headers["etag"]
    assert client.get("/v1/bases/latest", headers={"if-none-match": etag}).status_code == 304
    number = latest.json()["number"]
    for name, facts in latest.json()["files"].items():
        file = client.get(f"/v1/bases/{number}/files/{name}")
        assert file.content == (path / name).read_bytes()
        assert len(file.content) == facts["bytes"]
        part = client.get(
            f"/v1/bases/{number}/files/{name}", headers={"range": "bytes=3-", "if-range": file.headers["etag"]}
        )
        assert (part.status_code, part.content) == (206, file.content[3:])
        head = client.head(f"/v1/bases/{number}/files/{name}")
        assert (head.headers["content-length"], head.content) == (str(facts["bytes"]), b"")
    (path / "secret").write_text("not in the manifest")
    assert client.get(f"/v1/bases/{number}/files/manifest.json").json() == latest.json()
    assert client.get(f"/v1/bases/{number}/files/secret").status_code == 404
    assert client.get(f"/v1/bases/{number}/files/..%2f..%2fmanifest.json").status_code == 404
    assert client.get("/v1/bases/5/files/manifest.json").status_code == 410


def test_a_snapshot_is_the_model_at_one_version(world):
    world.log.start_epoch()
    world.log.publish(
        {(USER, row_id): [row_id, 1, 1, 1] for row_id in range(500)}, dense={"linear.bias": np.ones(2, "f4")}
    )
    world.log.write_base()
    old = world.log.publish({(USER, 3): [9, 9, 9, 9], (ITEM, 8): [8, 8, 8, 8]}, forgotten=[(USER, 4)])
    client = world.serve()
    world.served(client, old)
    answer = client.get("/v1/snapshot")
    assert answer.headers["x-springtide-version"] == str(old)
    tensors, metadata = decode_tensors(answer.content)
    manifest = json.loads(metadata["manifest"])
    assert manifest["version"] == old
    assert manifest["schema"]["categorical"] == ["user_id", "item_id"]
    keys = list(zip(tensors["rows.feature"].tolist(), tensors["rows.id"].tolist(), strict=True))
    rows = dict(zip(keys, tensors["rows.value"].tolist(), strict=True))
    assert rows == {key: row[0].tolist() for key, row in world.log.rows.items()}
    assert tensors["dense.linear.bias"].tolist() == [1, 1]
    assert tensors["model.pt2"].tobytes() == world.log.archive
    new = world.log.publish({(USER, 3): [7, 7, 7, 7]}, dense={"linear.bias": np.zeros(2, "f4")})
    world.served(client, new)
    etag = answer.headers["etag"]
    rest = client.get(f"/v1/snapshot?version={old}", headers={"range": "bytes=1000-", "if-range": etag})
    assert (rest.status_code, rest.content) == (206, answer.content[1000:])
    # another server, that never saw the old version served, gives the same bytes
    other = world.serve()
    world.served(other, new)
    assert other.get(f"/v1/snapshot?version={old}").content == answer.content
    assert other.get(f"/v1/snapshot?version={old}").headers["etag"] == etag
    without, _ = decode_tensors(other.get(f"/v1/snapshot?version={new}&rows=none").content)
    assert len(without["rows.id"]) == 0
    assert without["dense.linear.bias"].tolist() == [0, 0]
    assert client.get(f"/v1/snapshot?version={new + 1}").status_code == 410
    assert client.get("/v1/snapshot?rows=some").status_code == 422


def test_a_snapshot_outlives_the_base_of_its_view(world, tmp_path):
    world.log.start_epoch()
    old = world.log.path / f"base-{world.log.number:020d}"
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]}, strings=[(USER, "x")])
    directory = LogDirectory(world.log.path)
    view = view_at_version(directory, number)

    def content(name):
        (tmp_path / name).mkdir()
        made = SnapshotCache(world.log.path, tmp_path / name, max_bytes=1 << 30).get(view, number, rows="all")
        tensors, _ = decode_tensors(made.path.read_bytes())
        return {name: array.tolist() for name, array in tensors.items()}

    before = content("before")
    newer = world.log.write_base()
    shutil.rmtree(old)
    assert content("after") == before
    shutil.rmtree(newer)
    with pytest.raises(ApiError) as caught:
        content("gone")
    assert caught.value.status == 410


def test_a_snapshot_names_the_texts_of_its_living_rows(world):
    world.log.start_epoch()
    shoe, hat = (hash_string(text.encode()) for text in ("shoe", "hat"))
    world.log.publish({(ITEM, shoe): [1, 1, 1, 1]}, strings=[(ITEM, "shoe")])
    both = world.log.publish({(ITEM, hat): [2, 2, 2, 2]}, strings=[(ITEM, "hat"), (ITEM, "never learned")])
    one = world.log.publish(forgotten=[(ITEM, shoe)])
    client = world.serve()
    world.served(client, one)

    def told(version: int) -> dict[int, str]:
        tensors, _ = decode_tensors(client.get(f"/v1/snapshot?version={version}").content)
        return dict(
            zip(
                tensors["texts.id"].tolist(),
                decode_strings(tensors["texts.offsets"], tensors["texts.bytes"]),
                strict=True,
            )
        )

    assert told(both) == {shoe: "shoe", hat: "hat"}
    assert told(one) == {hat: "hat"}


def test_snapshots_on_disk_are_capped(world, tmp_path):
    world.log.start_epoch()
    cache = tmp_path / "cache"
    client = world.serve(cache_path=str(cache), snapshot_bytes=60_000)
    sizes = []
    for count in range(4):
        number = world.log.publish({(USER, count): [1, 1, 1, 1]})
        world.served(client, number)
        sizes.append(len(client.get("/v1/snapshot").content))
        held = [path.stat().st_size for path in cache.glob("snapshot-*")]
        assert sizes[-1] in held
        assert sum(held) <= 60_000
    assert len(list(cache.glob("snapshot-*"))) < 4
    small = world.serve(snapshot_bytes=100)
    world.served(small, number)
    assert small.get("/v1/snapshot").status_code == 507
    shutil.rmtree(cache)  # whatever cleans up old files
    assert len(client.get("/v1/snapshot").content) == sizes[-1]
    shutil.rmtree(cache)
    cache.touch()  # nothing can be written there
    answer = client.get("/v1/snapshot")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "snapshot_disk")
    assert "cache_path" in answer.json()["error"]["hint"]


def test_events_tell_every_new_version(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    with client.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()

        def next_event():
            event = {}
            for line in lines:
                if not line and "data" in event:
                    return event["event"], msgspec.json.decode(event["data"])
                name, _, value = line.partition(": ")
                event[name] = value
            raise AssertionError("the stream ended")

        assert next_event()[1]["version"] == world.log.number
        number = world.log.publish(scores={"whole": {"auc": 0.5}})
        name, document = next_event()
        assert (name, document["version"]) == ("version", number)
        assert next_event() == ("scores", {"version": number, "whole": {"auc": 0.5}})


def test_who_leaves_at_any_moment_leaves_no_stream_behind(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    address = (client.base_url.host, client.base_url.port)
    after = f"after={world.log.number}"
    for count in range(120):
        path = ("/v1/events", f"/v1/log?{after}", f"/v1/versions/latest?{after}&wait_seconds=60")[count % 3]
        with socket.create_connection(address) as asker:
            asker.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    wait_until(lambda: "springtide_open_streams 0" in client.get("/metrics").text)


def test_streams_are_limited_and_end_with_the_server(world):
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
        thread.join(timeout=20)
        assert not thread.is_alive()
