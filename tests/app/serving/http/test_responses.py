import asyncio

import pytest

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.responses import FileResponse, etag_matches

CONTENT = bytes(range(256)) * 16


def ask(path, method="GET", **headers):
    """(status, headers, body) of a FileResponse."""
    answer = FileResponse(path, etag='"tag"')
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.disconnect"}

    asyncio.run(answer({"type": "http", "method": method, "path": "/", "headers": raw}, receive, send))
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], names, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path / "file"


def test_a_file_is_sent_whole(path):
    status, headers, body = ask(path)
    assert (status, body) == (200, CONTENT)
    assert headers["content-length"] == str(len(CONTENT))
    assert headers["etag"] == '"tag"'
    assert headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [("bytes=0-0", 0, 1), ("bytes=100-", 100, 4096), ("bytes=-10", 4086, 4096), ("bytes=4000-9999", 4000, 4096)],
)
def test_a_range_is_sent_alone(path, wanted, start, end):
    status, headers, body = ask(path, range=wanted, if_range='"tag"')
    assert (status, body) == (206, CONTENT[start:end])
    assert headers["content-range"] == f"bytes {start}-{end - 1}/4096"
    assert headers["content-length"] == str(end - start)


@pytest.mark.parametrize("wanted", ["bytes=5-4", "bytes=-", "lines=1-2", "bytes=0-1,5-6", "bytes=a-b"])
def test_a_malformed_range_is_ignored(path, wanted):
    assert ask(path, range=wanted)[::2] == (200, CONTENT)


def test_a_range_with_another_etag_gets_the_whole_file(path):
    assert ask(path, range="bytes=5-6", if_range='"other"')[::2] == (200, CONTENT)


@pytest.mark.parametrize("wanted", ["bytes=4096-", "bytes=-0"])
def test_a_range_beyond_the_end_is_not_satisfiable(path, wanted):
    status, headers, body = ask(path, range=wanted)
    assert (status, body, headers["content-range"]) == (416, b"", "bytes */4096")
    assert not headers.keys() & {"content-type", "cache-control"}


def test_head_and_if_none_match_send_no_body(path):
    assert ask(path, method="HEAD")[::2] == (200, b"")
    assert ask(path, if_none_match='"other", W/"tag"')[::2] == (304, b"")
    assert etag_matches("*", '"tag"')
    assert not etag_matches(None, '"tag"')


def test_a_file_that_was_retired_is_gone(tmp_path):
    with pytest.raises(ApiError) as caught:
        FileResponse(tmp_path / "none", etag='""')
    assert caught.value.status == 410
