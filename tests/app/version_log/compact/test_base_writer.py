"""Rows in several files, one for each range of keys: every reader sees the base that one file would make."""

import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from springtide.app.version_log.compact import base_writer
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import remove_drafts
from springtide.app.version_log.disk_budget import base_row_bytes
from springtide.app.version_log.tables import LogTable, tables_of
from springtide.app.version_log.verify.replay import RowPlaces
from springtide.app.version_log.verify.verify import verify
from springtide_client.format.records import Head, VersionMeta
from springtide_client.format.tensors import HEAD_BYTES, encode_tensors, map_tensors
from springtide_client.log.base import Base, ModelIdentity, overlapping
from springtide_client.rows.hash_range import HashRange, owners_of
from springtide_client.rows.row_block import RowBlock
from tests.support.layers import sorted_layer
from tests.support.writer_log import SCHEMA, TABLE, WINDOW, WriterLog, put, row_tensors, sync_twice

NUM_ROWS = 30_000


def layer_of(num_rows: int) -> RowBlock:
    ids = np.arange(num_rows)
    value = np.stack([ids, -ids], axis=1).astype(np.float32)
    return sorted_layer((ids % 2).astype(np.uint16), ids, value, ids, ids + 1, value[:, :1] * 10)


def blocks_of(layer: RowBlock) -> list[RowBlock]:
    return [layer.take(slice(at, at + 7_000)) for at in range(0, len(layer), 7_000)]


def image_of(main: TableImage, **changes: object) -> BaseImage:
    return BaseImage(
        head=Head(1 << 32, 1 << 32),
        schema=SCHEMA,
        table=main,
        model=ModelIdentity(name="logistic"),
        meta=VersionMeta(fingerprint=SCHEMA.fingerprint()),
        dense={"dense.w": np.zeros(3, np.float32)},
        program=b"program",
        **changes,
    )


def write(folder, num_files: int, num_rows: int = NUM_ROWS) -> Base:
    layer = layer_of(num_rows)
    main = TableImage.of(TABLE, lambda: blocks_of(layer), blocks_of(layer.keys_only()), num_files)
    return Base.open(write_base(folder, image_of(main)))


COLUMNS = ("key_hash", "feature", "id", "value", "count", "last_seen", "state")


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[int, Base]:
    return {num_files: write(tmp_path_factory.mktemp(f"of-{num_files}"), num_files) for num_files in (1, 3, 4)}


@pytest.mark.parametrize("num_files", [3, 4])
def test_several_files_hold_what_one_file_holds(bases, num_files) -> None:
    one, several = bases[1], bases[num_files]
    assert several.manifest.num_ranges == num_files
    assert [len(base.manifest.table_files("")) for base in (one, several)] == [2, 2 * num_files]
    several.verify()
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(several.main.layer, column), getattr(one.main.layer, column))
    assert several.manifest.table_bytes("") - one.manifest.table_bytes("") < num_files * 7 * (1 << 16)


@pytest.mark.parametrize("num_files", [1, 3, 4])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_part_opens_the_files_of_its_keys_alone(bases, num_files, count, tmp_path) -> None:
    whole, manifest = bases[1].main.layer, bases[num_files].manifest
    for number in range(1, count + 1):
        own = HashRange(number, count)
        needed = manifest.serving_files_of(own) | set(manifest.optimizer_files("", own))
        assert len(manifest.rows_files("", own)) == len(overlapping(num_files, own))
        folder = tmp_path / str(number) / bases[num_files].path.name
        folder.mkdir(parents=True)
        for name in ("manifest.json", *(needed & manifest.files.keys())):
            shutil.copyfile(bases[num_files].path / name, folder / name)
        part = Base.open(folder, for_serving=True, hash_range=own)
        held = owners_of(whole.key_hash, count) + 1 == number
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(part.main.layer, column), getattr(whole, column)[held])


def test_small_files_are_not_padded(tmp_path) -> None:
    sizes = [
        write(tmp_path / str(num_files), num_files, num_rows=1000).manifest.table_bytes("") for num_files in (1, 8)
    ]
    assert sizes[1] - sizes[0] < 16 * HEAD_BYTES
    large = write(tmp_path / "large", 2, num_rows=300_000)
    np.testing.assert_array_equal(large.main.layer.value, layer_of(300_000).value)
    assert large.manifest.table_bytes("") < 1.13 * 300_000 * base_row_bytes(2, 1)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(large.path) in line]
    assert {line.rpartition("/")[2] for line in mapped} >= set(large.manifest.table_files(""))  # none is copied


def test_more_files_than_a_process_may_open(tmp_path) -> None:
    base = write(tmp_path, 300, num_rows=2_000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
    try:
        opened = Base.open(base.path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    np.testing.assert_array_equal(opened.main.layer.value, layer_of(2_000).value)


def test_a_range_may_have_no_rows(tmp_path) -> None:
    base = write(tmp_path, 8, num_rows=2)
    assert base.main.layer.id.tolist() == layer_of(2).id.tolist()
    assert [len(Base.open(base.path, hash_range=HashRange(n, 8))) for n in range(1, 9)].count(0) >= 6
    assert len(write(tmp_path / "empty", 2, num_rows=0)) == 0


def test_rows_that_are_not_as_announced_are_refused(tmp_path) -> None:
    blocks = blocks_of(layer_of(10))
    for by_range in ((10, 0), (0, 10), (9, 0)):
        with pytest.raises(ValueError, match="rows"):
            write_base(tmp_path, image_of(TableImage(spec=TABLE, num_rows=10, by_range=by_range, blocks=blocks)))
    other = {"other": TableImage(spec=TABLE)}
    with pytest.raises(ValueError, match="other table has other ranges"):
        write_base(tmp_path, image_of(TableImage.of(TABLE, lambda: blocks, layer_and_none(blocks), 2), tables=other))
    assert list(tmp_path.iterdir()) == []


def layer_and_none(blocks: list[RowBlock]) -> list[RowBlock]:
    return [block.keys_only() for block in blocks]


def test_a_kill_between_two_files_leaves_the_base_before(tmp_path, monkeypatch) -> None:
    log = WriterLog(tmp_path / "log")

    class KilledError(BaseException):
        """Ends the compactor; what it wrote stays, as after SIGKILL."""

    def kill(name: str) -> None:
        if name == "between two row files of a base":
            raise KilledError

    with log.writer() as writer:
        put(writer, 1.0)
        sync_twice(writer)
        before = log.directory.bases()
        with monkeypatch.context() as patch:
            patch.setattr(base_writer, "failpoint", kill)
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            with pytest.raises(KilledError):
                compact_log(log.directory, window_samples=WINDOW, base_files=3)
        (draft,) = log.path.glob(".tmp-base-*")
        assert (draft / "rows-00001-of-00003.safetensors").exists()
        assert not (draft / "rows-00002-of-00003.safetensors").exists()
        assert log.directory.bases() == before
        remove_drafts(log.directory)
        assert not draft.exists()
        assert Base.open(compact_log(log.directory, window_samples=WINDOW, base_files=3)).manifest.num_ranges == 3


def test_the_compactor_writes_and_rewrites_them_and_verify_reads_them(tmp_path) -> None:
    log, fingerprint = WriterLog(tmp_path / "log"), SCHEMA.fingerprint()
    with log.writer() as writer:
        for num_files in (3, 1, 2):
            for value in range(20):
                put(writer, value + 20 * num_files, fingerprint=fingerprint)
            writer.append(VersionMeta(fingerprint=fingerprint), row_tensors({}, [(0, 20 * num_files)]))
            writer.sync()
            writer.append(VersionMeta(fingerprint=fingerprint), {})
            writer.sync()
            base = Base.open(compact_log(log.directory, window_samples=WINDOW, base_files=num_files))
            assert base.manifest.num_ranges == num_files
        assert {row_id for _, row_id in log.rows_in(base)} == {*range(20, 80)} - {20, 40, 60}
    assert verify(log.directory, deep=True, keep_bases=5).errors == []
    (table,) = tables_of(base.manifest)
    places, (first, second) = RowPlaces(base, table), base.manifest.rows_files("")
    assert places.misplaced() is None
    num_first = len(map_tensors(base.path / first)["id"])
    assert [places.name(row) for row in (0, num_first - 1, num_first, 56)] == [first, first, second, second]
    assert [places.in_file(row) for row in (0, num_first, 56)] == [0, 0, 56 - num_first]
    arrays = {name: array.copy() for name, array in map_tensors(base.path / first).items()}
    arrays["mixed"][-1] = 2**64 - 1
    (base.path / first).unlink()  # it may be mapped
    (base.path / first).write_bytes(b"".join(encode_tensors(arrays)))
    assert RowPlaces(base, table).misplaced() == first
    arrays["mixed"][-1] = arrays["mixed"][-2]
    (base.path / first).write_bytes(b"".join(encode_tensors(arrays)))
    shutil.copyfile(base.path / first, base.path / second)
    assert RowPlaces(base, table).misplaced() == second


def test_verify_reports_a_base_that_went_away_while_it_was_checked(tmp_path, monkeypatch) -> None:
    log = WriterLog(tmp_path / "log")
    with log.writer() as writer:
        put(writer, 1, fingerprint=SCHEMA.fingerprint())
        sync_twice(writer)
        base = compact_log(log.directory, window_samples=WINDOW, base_files=3)
        assert base is not None
    made = RowPlaces.__init__

    def make(self, of_base: Base, table: LogTable) -> None:
        if of_base.path == base and base.exists():
            shutil.rmtree(base)
        made(self, of_base, table)

    monkeypatch.setattr(RowPlaces, "__init__", make)
    notes: list[str] = []
    errors = verify(log.directory, deep=True, keep_bases=1, on_finding=lambda one: notes.append(one.what)).errors
    assert "files were added and deleted meanwhile: starting again" in notes
    assert not any("went away" in error.what for error in errors)
