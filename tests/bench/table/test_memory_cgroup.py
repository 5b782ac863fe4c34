import threading
from pathlib import Path

import pytest

from tests.bench.table.memory_cgroup import MemoryCgroup, uncached_copy


def make(parent: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> MemoryCgroup:
    """Make a cgroup in a plain folder, with the kernel's files made by the test."""
    mkdir = Path.mkdir

    def mkdir_with_files(path: Path) -> None:
        mkdir(path)
        for name, text in files.items():
            (path / name).write_text(text)

    monkeypatch.setattr(Path, "mkdir", mkdir_with_files)
    return MemoryCgroup(parent)


@pytest.mark.parametrize(
    ("limit", "stat"),
    [
        ("memory.max", "anon 100\nfile 7\nshmem 20\n"),
        ("memory.limit_in_bytes", "cache 7\nrss 1\ntotal_rss 100\ntotal_shmem 20\n"),
    ],
)
def test_both_versions_of_cgroups_are_limited(
    limit: str, stat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroup = make(tmp_path, monkeypatch, {limit: "max", "memory.stat": stat, "cgroup.procs": ""})
    cgroup.add(42)
    cgroup.limit(1000)
    assert cgroup.anonymous_bytes() == 120
    assert (cgroup.path / limit).read_text() == "1000"
    assert (cgroup.path / "cgroup.procs").read_text() == "42"
    cgroup.lift()
    assert (cgroup.path / limit).read_text() == "max"


def test_the_peak_is_of_what_was_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup = make(tmp_path, monkeypatch, {"memory.max": "max", "memory.stat": "anon 100\nshmem 20\n"})
    assert cgroup.peak_bytes == 0
    seen = threading.Event()
    monkeypatch.setattr(cgroup, "anonymous_bytes", lambda: seen.set() or 120)
    with cgroup.watched(every_seconds=0.001):
        assert seen.wait(10)
    assert cgroup.peak_bytes == 120


def test_a_folder_without_a_memory_controller_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no memory controller"):
        MemoryCgroup(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_copy_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "rows").write_bytes(b"rows")
    assert (uncached_copy(tmp_path / "base", tmp_path / "copy") / "rows").read_bytes() == b"rows"
