"""Generations of the spill and the compactor's bases, with a table that records its calls."""

from pathlib import Path

import numpy as np
import pytest

from springtide.app.training.state.base_rows import BaseRows
from springtide.app.training.state.spill_gc import NO_GENERATION, SpillGC
from springtide.app.version_log.compact.base_writer import BaseImage, write_base
from springtide.embeddings.tiers.interface import RowSource
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.log.base import ModelIdentity, TableSpec
from springtide_client.log.directory import LogDirectory
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
        self.mapped.append((base.base.tip.number, generation))


@pytest.fixture
def table() -> RecordingTable:
    return RecordingTable()


@pytest.fixture
def spill_gc(tmp_path: Path, table: RecordingTable) -> SpillGC:
    write(tmp_path, 1)
    return SpillGC({"": table}, LogDirectory(tmp_path), mapped=1)


def write(path: Path, number: int) -> None:
    image = BaseImage(
        tip=Tip(number, number),
        schema=SCHEMA,
        table=TableSpec(dim=2, state_width=1, seed=0, init_scale=0.1),
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
