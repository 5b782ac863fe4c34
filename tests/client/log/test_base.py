"""A base is mapped, found by key with its optimizer states, and verified by its checksums."""

import mmap
from pathlib import Path

import msgspec
import numpy as np
import pytest

from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide_client.errors import LogError
from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import Head, VersionMeta
from springtide_client.log.base import (
    MANIFEST,
    Base,
    ModelIdentity,
    TableSpec,
    optimizer_files,
    overlapping,
    rows_files,
)
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.hash_range import NO_KEYS, HashRange, first_key_hash
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema
from tests.support.layers import sorted_layer

SCHEMA = Schema(labels=("click",), categorical=("user_id",), share={}, max_length={})


def rows(num_rows: int, dim: int = 4) -> RowBlock:
    ids = np.arange(num_rows, dtype=np.int64) * 3
    value = ids[:, None].astype(np.float32) + np.arange(dim, dtype=np.float32)
    return sorted_layer(
        np.zeros(num_rows, np.uint16), ids, value, ids + 1, ids + 2, ids[:, None].astype(np.float32) * 2
    )


def write(
    path, layer: RowBlock, *, blocks: list[RowBlock] | None = None, num_rows: int | None = None, **changes
) -> Base:
    image = BaseImage(
        **{
            "head": Head(1 << 32, 5),
            "schema": SCHEMA,
            "table": TableImage(
                spec=TableSpec(dim=layer.dim, state_width=1, seed=1, init_scale=0.1),
                num_rows=len(layer) if num_rows is None else num_rows,
                blocks=[layer] if blocks is None else blocks,
            ),
            "model": ModelIdentity(name="dlrm", options={"width": 8}),
            "meta": VersionMeta(step=3),
            "dense": {
                "dense.w": np.ones((2, 2), np.float32),
                "dense.scalar": np.array(7),
                "state.optimizer.m": np.zeros(3, np.float32),
            },
            "program": b"PK",
        }
        | changes
    )
    return Base.open(write_base(path, image))


def test_a_base_opens_with_all_that_was_written(tmp_path) -> None:
    base = write(tmp_path, rows(1000))
    assert (base.head, base.manifest.epoch, base.manifest.meta.step) == (Head(1 << 32, 5), 1, 3)
    assert base.manifest.decode_schema() == SCHEMA
    assert base.manifest.model.options == {"width": 8}
    assert set(base.dense) == {"dense.w", "dense.scalar"}
    assert base.dense["dense.scalar"] == 7
    assert set(base.trainer_state) == {"state.optimizer.m"}
    assert base.id_strings is None
    assert base.model_path is not None
    assert base.model_path.read_bytes() == b"PK"
    base.verify()
    assert LogDirectory(tmp_path).newest_base() == base.path


def test_rows_are_found_with_their_states(tmp_path) -> None:
    base = write(tmp_path, rows(1000))
    places = base.main.layer.find(np.zeros(4, np.uint16), np.array([0, 1, 2997, 9000]))
    assert (places >= 0).tolist() == [True, False, True, False]
    found = base.main.layer.take(places[[0, 2]])
    np.testing.assert_array_equal(found.value[1], [2997, 2998, 2999, 3000])
    np.testing.assert_array_equal(found.state[:, 0], [0, 5994])
    np.testing.assert_array_equal(found.count, [1, 2998])
    np.testing.assert_array_equal(found.last_seen, [2, 2999])
    assert base.main.layer.find(np.ones(1, np.uint16), np.array([0])).tolist() == [-1]


def test_a_base_without_rows_opens(tmp_path) -> None:
    base = write(tmp_path, rows(0), program=None)
    assert len(base) == 0
    assert base.model_path is None
    assert base.main.layer.find(np.zeros(1, np.uint16), np.array([0])).tolist() == [-1]
    base.verify()


def test_rows_are_memory_mapped(tmp_path) -> None:
    base = Base.open(write(tmp_path, rows(1000)).path)
    owner: object = base.main.rows.value
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    assert isinstance(owner, mmap.mmap)


def test_a_base_written_in_blocks_equals_one_written_at_once(tmp_path) -> None:
    layer = rows(1000)
    blocks = [layer.take(slice(start, start + 300)) for start in range(0, 1000, 300)]
    whole, pieces = write(tmp_path / "a", layer), write(tmp_path / "b", layer, blocks=blocks)
    assert whole.manifest.files == pieces.manifest.files


@pytest.mark.parametrize(
    ("blocks", "num_rows"),
    [
        (lambda layer: [layer.take(slice(500, 1000)), layer.take(slice(0, 500))], 1000),
        (lambda layer: [layer], 999),
        (lambda layer: [layer], 1001),
        (lambda layer: [layer.without_states()], 1000),
    ],
)
def test_rows_that_do_not_make_a_base_leave_no_files(tmp_path, blocks, num_rows: int) -> None:
    with pytest.raises(ValueError, match=r"rows|fit"):
        write(tmp_path, rows(1000), blocks=blocks(rows(1000)), num_rows=num_rows)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_size_is_found_on_open_and_a_wrong_checksum_by_verify(tmp_path) -> None:
    base = write(tmp_path, rows(1000))
    path = base.path / "rows.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogError, match=r"rows\.safetensors is corrupt"):
        Base.open(base.path).verify()
    path.write_bytes(data[:-1])
    with pytest.raises(LogError, match=r"rows\.safetensors"):
        Base.open(base.path)
    path.unlink()
    with pytest.raises(LogError, match=r"rows\.safetensors"):
        Base.open(base.path)


@pytest.mark.parametrize(("num_ranges", "what"), [(0, ">= 1"), (10**9, "<= 65535"), (2, "rows-00001-of-00002")])
def test_a_number_of_files_that_cannot_be_is_refused(tmp_path, num_ranges, what) -> None:
    base = write(tmp_path, rows(3))
    manifest = msgspec.structs.replace(base.manifest, num_ranges=num_ranges)
    (base.path / MANIFEST).write_bytes(encode_checksummed_json(manifest))
    with pytest.raises(LogError, match=what):
        Base.open(base.path)


def test_a_flipped_bit_in_the_manifest_is_noticed(tmp_path) -> None:
    base = write(tmp_path, rows(3))
    text = (base.path / MANIFEST).read_bytes()
    (base.path / MANIFEST).write_bytes(text.replace(b'"step":3', b'"step":2'))
    with pytest.raises(LogError, match="checksum"):
        Base.open(base.path)


def test_an_open_base_outlives_its_folder(tmp_path) -> None:
    base = write(tmp_path, rows(1000))
    for file in base.path.iterdir():
        file.unlink()
    assert base.main.layer.value[base.main.layer.find(np.zeros(1, np.uint16), np.array([300])), 0] == [300]


def test_the_newest_base_that_is_not_corrupt_is_opened(tmp_path) -> None:
    old = write(tmp_path, rows(3))
    new = write(tmp_path, rows(4), head=Head((1 << 32) + 9, 6))
    directory = LogDirectory(tmp_path)
    opened = directory.open_base()
    assert opened is not None
    assert opened.path == new.path
    (new.path / MANIFEST).write_bytes(b"{")
    opened = directory.open_base()
    assert opened is not None
    assert opened.path == old.path
    (old.path / MANIFEST).unlink()
    with pytest.raises(LogError):
        directory.open_base()


def test_a_base_that_already_exists_is_kept(tmp_path) -> None:
    first = write(tmp_path, rows(3))
    second = write(tmp_path, rows(3))
    assert first.path == second.path
    assert [path.name for path in tmp_path.iterdir()] == [first.path.name]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/self/smaps")
def test_random_access_turns_kernel_readahead_off(tmp_path) -> None:
    base = write(tmp_path, rows(1000))
    assert not is_read_randomly(base.path / "rows.safetensors")
    base.advise_random_access()
    assert is_read_randomly(base.path / "rows.safetensors")
    assert is_read_randomly(base.path / "optimizer.safetensors")
    assert base.main.layer.value[base.main.layer.find(np.zeros(1, np.uint16), np.array([300])), 0] == [300]


def is_read_randomly(path: Path) -> bool:
    """Return True if the map of this file has the kernel's flag `rr`."""
    _, _, about = Path("/proc/self/smaps").read_text().partition(str(path))
    flags = next(line for line in about.splitlines() if line.startswith("VmFlags:"))
    return "rr" in flags.split()


def test_every_table_has_rows_of_its_own_width(make_log) -> None:
    log = make_log(tables={"dim8": (8, [1])})
    log.append({(0, 1): (np.ones(4, np.float32), 1, 2), (1, 1): (np.full(8, 2, np.float32), 3, 4)})
    base = Base.open(log.write_base())
    base.verify()
    assert (len(base), len(base.main.rows)) == (2, 1)
    assert base.tables["dim8"].rows.value.tolist() == [[2.0] * 8]
    assert base.tables["dim8"].layer.state.shape == (1, 0)
    assert base.tables["dim8"].layer.count.tolist() == [3]
    assert base.manifest.serving_files >= {"rows.safetensors", "rows.dim8.safetensors"}
    assert not any(name.startswith("optimizer") for name in base.manifest.serving_files)
    base.manifest.table.wide_width = 1
    assert {name for name in base.manifest.serving_files if name.startswith("opt")} == {"optimizer.safetensors"}


def test_one_file_has_the_plain_name_and_several_are_numbered() -> None:
    assert rows_files("") == ["rows.safetensors"]
    assert optimizer_files("dim8") == ["optimizer.dim8.safetensors"]
    assert rows_files("", 2) == ["rows-00001-of-00002.safetensors", "rows-00002-of-00002.safetensors"]
    assert optimizer_files("dim8", 3)[2] == "optimizer.dim8-00003-of-00003.safetensors"


@pytest.mark.parametrize("num_files", [1, 2, 3, 4, 7])
def test_a_range_needs_the_files_whose_keys_it_shares(num_files) -> None:
    bounds = [first_key_hash(number, num_files) for number in range(num_files + 1)]
    for count in range(1, 9):
        for number in range(1, count + 1):
            own = HashRange(number, count)
            expected = [n for n in range(num_files) if bounds[n] < own.end and own.start < bounds[n + 1]]
            assert list(overlapping(num_files, own)) == expected
    assert not overlapping(num_files, NO_KEYS)
