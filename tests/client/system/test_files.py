"""A file is replaced whole or not at all, and a failed attempt leaves nothing beside it."""

import os
from pathlib import Path

import pytest

from springtide_client.system.files import draft_name, draft_of, make_durable_folder, write_atomically


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
