"""Over HTTP a follower reaches the log's versions, through cut downloads, broken streams, corruption and retention."""

import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from springtide_client.errors import LogError
from springtide_client.follow.follower import Follower
from springtide_client.http.http_log import HttpLog
from springtide_client.keys import hash_keys
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from tests.client.log_server import TOKEN, FaultyLogServer
from tests.support.waiting import wait_until


def follows(follower: Follower, number: int) -> Callable[[], bool]:
    return lambda: follower.view is not None and follower.view.version == number


@pytest.fixture
def server(log):
    """The log's server."""
    server = FaultyLogServer(log)
    yield server
    if not server.is_closed:
        server.close()


@pytest.fixture
def follow(tmp_path):
    """Followers of a server, each in a thread of its own, closed at the end."""
    made: list[tuple[Follower, HttpLog]] = []

    def start(
        server: FaultyLogServer, *, token: str = TOKEN, cache_dir=tmp_path / "cache", hash_range=ALL_KEYS
    ) -> Follower:
        source = HttpLog(server.url, token=token, cache_dir=cache_dir, hash_range=hash_range)
        follower = Follower(source, wait=source.wait, hash_range=hash_range)
        made.append((follower, source))
        follower.start()
        return follower

    yield start
    for follower, source in made:
        follower.stop()
        source.close()
        follower.close()


def test_versions_arrive_as_they_are_written(server, log, follow) -> None:
    log.append({(0, 1): log.row(1)})
    log.write_base()
    first = log.append({(0, 2): log.row(2)})
    follower = follow(server)
    wait_until(lambda: follower.view is not None)
    assert follower.view.version == first  # the first view is the newest there was
    for seed in range(3, 30):
        log.append({(0, seed): log.row(seed)}, [(0, seed - 1)])
    wait_until(follows(follower, log.number))
    assert follower.view.row_info(0, 29)["count"] == 29
    assert follower.view.row_info(0, 28)["status"] == "forgotten"
    assert follower.view.row_info(0, 1)["count"] == 1
    assert follower.num_restarts == 0
    assert len([path for path, _ in server.requests if path.startswith("/v1/log")]) == 1


def test_a_cut_download_is_resumed_where_it_broke_off(server, log, follow) -> None:
    log.append({(0, i): log.row(i) for i in range(200)})
    log.write_base()
    server.cut_files_at = 3000
    follower = follow(server)
    wait_until(follows(follower, log.number))
    ranges = [byte_range for path, byte_range in server.requests if path.endswith("rows.safetensors")]
    assert ranges == [None, "bytes=3000-"]
    assert follower.view.row_info(0, 199)["count"] == 199


def test_a_cached_base_is_not_downloaded_again(server, follow, tmp_path) -> None:
    server.log.append()
    wait_until(follows(follow(server), server.log.number))
    wait_until(follows(follow(server), server.log.number))
    assert len([path for path, _ in server.requests if path.endswith("rows.safetensors")]) == 1
    server.log.write_base()
    wait_until(follows(follow(server), server.log.number))
    assert len(list((tmp_path / "cache").iterdir())) == 1  # only the newest


def test_only_files_for_serving_are_downloaded(server, log, follow, tmp_path) -> None:
    log.append({(0, 1): log.row(1)}, seen={(0, 2): 1})
    log.write_base()
    follower = follow(server)
    wait_until(follows(follower, log.number))
    requested = {path.rpartition("/")[2] for path, _ in server.requests if "/files/" in path}
    assert requested == {"manifest.json", "rows.safetensors", "dense.safetensors", "sketch.safetensors", "model.pt2"}
    assert follower.view.row_info(0, 1)["count"] == 1
    with pytest.raises(OSError, match=r"optimizer\.safetensors"):
        _ = follower.view.base.main.states


@pytest.mark.parametrize(("text", "expected"), [("3/4", {3}), ("2/2", {3, 4}), ("1/3", {1, 2})])
def test_a_part_downloads_the_files_of_its_keys(server, log, follow, tmp_path, text, expected) -> None:
    own = HashRange.parse(text)
    log.append({(0, i): log.row(i) for i in range(100)})
    log.write_base(num_ranges=4)
    follower = follow(server, hash_range=own)
    wait_until(follows(follower, log.number))
    requested = {path.rpartition("/")[2] for path, _ in server.requests if "/rows" in path}
    assert requested == {f"rows-{number:05d}-of-00004.safetensors" for number in expected}
    found = follower.view.lookup(np.zeros(100, np.uint16), np.arange(100))[1] == 0
    np.testing.assert_array_equal(found, own.holds(hash_keys(np.zeros(100, np.uint16), np.arange(100))))


def test_a_base_beyond_the_disk_limit_is_refused_with_the_bytes_it_needs(server, tmp_path) -> None:
    source = HttpLog(server.url, token=TOKEN, cache_dir=tmp_path / "cache", disk_bytes=1000)
    with pytest.raises(LogError, match=r"would hold [\d,]+ bytes, 1,000 are allowed: raise cache_disk_bytes"):
        source.newest_base()
    source.close()


def test_versions_are_applied_while_a_newer_base_is_downloaded(server, log, follow, monkeypatch) -> None:
    monkeypatch.setattr("springtide_client.follow.views.REBASE_ROWS", 1)
    monkeypatch.setattr("springtide_client.follow.views.REBASE_SECONDS", 0.0)
    log.append({(0, 1): log.row(1)})
    follower = follow(server)
    wait_until(follows(follower, log.number))
    server.held = "rows.safetensors"
    log.write_base()
    wait_until(lambda: len([path for path, _ in server.requests if path.endswith("rows.safetensors")]) == 2)
    for seed in range(2, 5):
        wait_until(follows(follower, log.append({(0, seed): log.row(seed)})))
    assert follower.view.base.manifest.number < log.newest_base["number"]
    server.released.set()
    wait_until(lambda: follower.view.base.manifest.number == log.newest_base["number"])
    assert follower.view.row_info(0, 4)["count"] == 4
    wait_until(lambda: sum(thread.name == "springtide-log" for thread in threading.enumerate()) == 1)


@pytest.mark.parametrize("held", ["/v1/bases/latest", "rows.safetensors", "/v1/versions/latest", "/v1/log"])
def test_closing_ends_a_request_that_waits_for_its_response(server, held) -> None:
    server.held = held
    source = HttpLog(server.url, token=TOKEN)
    follower = Follower(source, wait=source.wait)
    follower.start()
    wait_until(lambda: any(held in path for path, _ in server.requests))
    follower.stop()
    source.stop()
    follower.close()
    assert not follower._thread.is_alive()
    source.close()
    assert not source._own_folder.exists()


def test_a_corrupt_partial_download_is_discarded(server, log, follow, tmp_path) -> None:
    log.append({(0, i): log.row(i) for i in range(200)})
    base = log.write_base()
    server.cut_files_at = 3000
    whole = (base / "rows.safetensors").read_bytes()
    (base / "rows.safetensors").write_bytes(b"\0" * 100 + whole[100:])
    follower = follow(server)
    wait_until(lambda: list((tmp_path / "cache").glob("*/*/rows.safetensors.part")))
    (base / "rows.safetensors").write_bytes(whole)
    wait_until(follows(follower, log.number))


def test_a_record_corrupted_on_its_way_is_requested_again(server, log, follow) -> None:
    log.append({(0, 1): log.row(1)})
    follower = follow(server)
    wait_until(follows(follower, log.number))
    server.flip_next_record = True
    log.append({(0, 1): log.row(2)})
    wait_until(follows(follower, log.number))
    wait_until(lambda: follower.error is None)
    assert not server.flip_next_record


def test_a_follower_behind_deleted_records_starts_again_from_the_newest_base(server, log, follow) -> None:
    log.append({(0, 1): log.row(1)})
    follower = follow(server)
    wait_until(follows(follower, log.number))
    old_base = server.directory.newest_base()
    server.close()
    for seed in range(2, 5):
        log.append({(0, 1): log.row(seed)})
    log.write_base()
    for file in old_base.iterdir():
        file.unlink()
    old_base.rmdir()
    log.segment.unlink()
    log.start_epoch()
    log.append({(0, 2): log.row(9)})
    wait_until(lambda: follower.error is not None)
    assert follower.view.row_info(0, 1)["count"] == 1  # the old view is served meanwhile

    again = FaultyLogServer(log, server.port)
    try:
        wait_until(follows(follower, log.number))
        assert follower.view.row_info(0, 1)["count"] == 4
        assert follower.num_restarts == 1
    finally:
        again.close()


def test_a_wrong_token_raises_the_servers_message_and_hint(server, follow) -> None:
    follower = follow(server, token="guess")
    wait_until(lambda: follower.error is not None)
    assert isinstance(follower.error, LogError)
    assert "the token is missing or wrong (send Authorization" in str(follower.error)


def test_an_unreachable_server_is_named_in_the_error() -> None:
    source = HttpLog("http://127.0.0.1:9")
    with pytest.raises(LogError, match=r"http://127\.0\.0\.1:9 cannot be reached \(.*refused\): is it running"):
        source.newest_base()
    folder = source._own_folder
    assert folder.exists()
    source.close()
    assert not folder.exists()


def test_a_process_that_ends_without_closing_leaves_no_folder(tmp_path) -> None:
    code = """if True:
        import os, tempfile
        from springtide_client.http.http_log import HttpLog
        log = HttpLog("http://127.0.0.1:9")
        assert os.listdir(tempfile.gettempdir())
        if os.fork() == 0:
            raise SystemExit  # the child does not own the folder
        os.wait()
        assert os.listdir(tempfile.gettempdir())
        """
    environment = {"PYTHONPATH": "deploy/client", "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host?x=1"])
def test_a_url_that_is_not_a_servers_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a server"):
        HttpLog(url)


def test_closing_leaves_no_thread_and_no_connection(server, follow) -> None:
    server.log.append()
    source = HttpLog(server.url, token=TOKEN)
    follower = Follower(source, wait=source.wait)
    follower.start()
    wait_until(follows(follower, server.log.number))
    assert source._client.num_connections
    follower.stop()
    source.close()
    follower.close()
    assert not follower._thread.is_alive()
    assert source._client.num_connections == 0


def test_a_closed_source_starts_no_download(server) -> None:
    source = HttpLog(server.url, token=TOKEN)
    source.close()
    assert source.local_base() is None
    assert source._download is None
