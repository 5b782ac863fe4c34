"""A file is replaced whole or not at all, and a failed attempt leaves nothing beside it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from springtide_client.system import files
from springtide_client.system.files import (
    draft_name,
    draft_of,
    file_lock,
    make_durable_folder,
    write_atomically,
    write_synced,
)

HOLDER = """
import sys, time
from pathlib import Path
from springtide_client.system.files import file_lock
with file_lock(Path(sys.argv[1]), lambda: time.sleep(0.01)):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "status.json"
    for content in (b"old", b"new"):
        write_atomically(path, content, durable=durable)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["status.json"]


def test_an_error_while_writing_keeps_the_old_file_and_removes_the_draft(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"old")

    def write_half() -> None:
        with draft_of(path) as draft:
            draft.write_bytes(b"ne")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["rows"]


def test_a_draft_is_beside_its_file_and_names_its_process(tmp_path: Path) -> None:
    with draft_of(tmp_path / "rows") as draft:
        assert draft == tmp_path / draft_name("rows", os.getpid())
        assert draft.name.startswith(".tmp-rows-")
        assert draft.name.endswith(f"-{os.getpid()}")
        draft.touch()


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    for _ in range(2):
        make_durable_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_free_lock_is_held_at_once_and_again_later(tmp_path: Path) -> None:
    for _ in range(2):
        with file_lock(tmp_path / "lock", lambda: True) as is_held:
            assert is_held


def test_a_held_lock_is_waited_for_until_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with file_lock(path, lambda: True) as is_held:
            assert not is_held  # waiting was ended at once

        def kill() -> None:
            holder.kill()
            holder.wait()

        with file_lock(path, kill) as is_held:
            assert is_held


def test_a_disk_that_would_keep_bytes_in_its_cache_is_told_to_write_them(tmp_path: Path, monkeypatch) -> None:
    asked: list[object] = []
    answers = [0, errno.ENOTSUP, errno.EIO]

    def control(descriptor: int, command: int) -> None:
        asked.append(command)
        if refused := answers.pop(0):
            raise OSError(refused, "refused")

    monkeypatch.setattr(files, "FULL_SYNC", 51)  # F_FULLFSYNC of macOS
    monkeypatch.setattr(files.fcntl, "fcntl", control)
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: asked.append("fsync"))
    for _ in range(2):
        write_synced(tmp_path / "file", b"bytes")
    assert asked == [51, 51, "fsync"]
    with pytest.raises(OSError, match="refused"):
        write_synced(tmp_path / "file", b"bytes")
