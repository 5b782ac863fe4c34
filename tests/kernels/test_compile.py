"""The compiled functions of a package are deleted once one of its sources is newer."""

import os
from pathlib import Path

from springtide.kernels.compile import remove_stale_cache


def package(folder: Path) -> tuple[Path, Path]:
    source, compiled = folder / "part" / "hash.py", folder / "part" / "__pycache__" / "hash.mix-1.py311.nbi"
    compiled.parent.mkdir(parents=True)
    source.write_text("")
    compiled.write_bytes(b"")
    return source, compiled


def test_a_cache_newer_than_every_source_stays(tmp_path: Path) -> None:
    source, compiled = package(tmp_path)
    os.utime(source, (1, 1))
    assert remove_stale_cache(tmp_path) == 0
    assert compiled.exists()


def test_a_cache_is_deleted_when_any_source_is_newer(tmp_path: Path) -> None:
    _, compiled = package(tmp_path)
    (tmp_path / "other.py").write_text("")
    os.utime(compiled, (1, 1))
    assert remove_stale_cache(tmp_path) == 1
    assert not compiled.exists()


def test_a_package_without_a_cache_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    assert remove_stale_cache(tmp_path) == 0
