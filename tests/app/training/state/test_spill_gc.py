"""Generations of the spill and the compactor's bases, with a table that records its calls."""

from pathlib import Path

import numpy as np
import pytest

from springtide.app.training.state.spill_gc import CHUNK_KEYS, NO_GENERATION, BaseRows, SpillGC
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.embeddings.tiers.interface import RowSource
from springtide_client.format.records import Head, VersionMeta
from springtide_client.keys import hash_keys
from springtide_client.log.base import Base, ModelIdentity, TableSpec
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user_id",))


class RecordingTable:
    def __init__(self) -> None:
        self.num_open = 0
        self.mapped: list[tuple[int, int]] = []

    def open_generation(self) -> int:
        self.num_open += 1
        return self.num_open - 1

    def map_base(self, base: RowSource, generation: int) -> None:
        assert isinstance(base, BaseRows)
        self.mapped.append((base.base.head.number, generation))


@pytest.fixture
def table() -> RecordingTable:
    return RecordingTable()


@pytest.fixture
def spill_gc(tmp_path: Path, table: RecordingTable) -> SpillGC:
    write(tmp_path, 1)
    return SpillGC({"": table}, LogDirectory(tmp_path), mapped=1)


def write(path: Path, number: int) -> None:
    image = BaseImage(
        head=Head(number, number),
        schema=SCHEMA,
        table=TableImage(spec=TableSpec(dim=2, state_width=1, seed=0, init_scale=0.1)),
        model=ModelIdentity(name="logistic"),
        meta=VersionMeta(),
        dense={"dense.w": np.zeros(1, np.float32)},
    )
    write_base(path, image)


def test_a_generation_is_destroyed_with_the_first_base_that_covers_it(spill_gc, table, tmp_path):
    spill_gc.on_checkpoint(5)
    spill_gc.on_checkpoint(6)
    assert table.num_open == 1  # one waits at a time
    write(tmp_path, 4)
    spill_gc.map_newest_base(6)
    assert table.mapped == [(4, NO_GENERATION)]  # read from now on, and it does not cover what was spilled before 5
    write(tmp_path, 5)
    spill_gc.map_newest_base(6)
    assert table.mapped[1:] == [(5, 0)]
    spill_gc.on_checkpoint(7)
    write(tmp_path, 9)
    spill_gc.map_newest_base(9)
    assert table.mapped[2:] == [(9, 1)]


def test_a_base_is_mapped_once(spill_gc, table, tmp_path):
    spill_gc.map_newest_base(6)
    write(tmp_path, 3)
    spill_gc.map_newest_base(6)
    spill_gc.map_newest_base(6)
    assert table.mapped == [(3, NO_GENERATION)]


def test_a_base_newer_than_this_trainers_log_is_not_mapped(spill_gc, table, tmp_path):
    write(tmp_path, 50)
    spill_gc.map_newest_base(6)
    assert table.mapped == []


def test_an_unreadable_base_is_ignored_with_one_warning(spill_gc, table, tmp_path, caplog):
    write(tmp_path, 4)
    rows = next(tmp_path.glob("base-*4")) / "rows.safetensors"
    rows.write_bytes(rows.read_bytes()[:-1])
    for _ in range(3):
        assert not spill_gc.map_newest_base(6)
    assert table.mapped == []
    assert [line.message for line in caplog.records] == ["a base cannot be mapped"]


NUM, DIM = 40_000, 4


def made(folder: Path, num: int) -> Base:
    """A base of ids 0, 2, 4... whose columns are functions of the id."""
    ids_N, features_N = np.arange(0, 2 * num, 2), np.arange(num).astype(np.uint16) % 3
    key_hash_N = hash_keys(features_N, ids_N)
    order = np.argsort(key_hash_N)
    ids_N, features_N = ids_N[order], features_N[order]
    values_ND = ids_N[:, None] + np.arange(DIM, dtype=np.float32)
    states_NS = -values_ND[:, :1]
    values_ND, states_NS = values_ND.astype(np.float32), states_NS.astype(np.float32)
    rows = RowBlock(features_N, ids_N, values_ND, states_NS, ids_N % 7, ids_N + 1)
    spec = TableSpec(dim=DIM, state_width=1, seed=0, init_scale=0.05, optimizer={"name": "rowwise-adagrad"})
    image = BaseImage(
        head=Head(1, 1),
        schema=Schema(labels=("click",), categorical=("a", "b", "c")),
        table=TableImage(spec=spec, num_rows=num, blocks=[rows]),
        model=ModelIdentity(name="dlrm"),
        meta=VersionMeta(),
        dense={},
    )
    return Base.open(write_base(folder, image))


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("num", [NUM, 1, 0])
def test_a_row_is_found_as_written_and_an_unknown_key_is_not(tmp_path: Path, num: int, asks: bool) -> None:
    rows = BaseRows(made(tmp_path, num))
    ids_U = np.random.default_rng(0).permutation(2 * num + 10)[: 5 * CHUNK_KEYS]
    features_U = (ids_U // 2 % 3).astype(np.uint16)
    rows._readahead.observe(int(asks), 1)
    found = rows.find(features_U, ids_U)
    expected_U = (ids_U % 2 == 0) & (ids_U < 2 * num)
    np.testing.assert_array_equal(found.found_U, expected_U)
    known_U = ids_U[expected_U]
    np.testing.assert_array_equal(found.rows.value[expected_U], known_U[:, None] + np.arange(DIM, dtype=np.float32))
    np.testing.assert_array_equal(found.rows.state[expected_U, 0], -known_U)
    np.testing.assert_array_equal(found.rows.count[expected_U], known_U % 7)
    np.testing.assert_array_equal(found.rows.last_seen[expected_U], known_U + 1)


def test_finding_no_keys_returns_no_rows(tmp_path: Path) -> None:
    rows = BaseRows(made(tmp_path, 10))
    rows._readahead.observe(1, 1)
    found = rows.find(np.empty(0, np.uint16), np.empty(0, np.int64))
    assert len(found.rows) == len(found.found_U) == 0
