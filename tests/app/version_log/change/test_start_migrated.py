"""A change of tables carries what still fits: rows that move, tables that appear and go, the wide part's numbers."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from springtide.app.version_log.change.plan import ModelSignature, Plan, plan_change
from springtide.app.version_log.change.start_migrated import start_migrated
from springtide.app.version_log.commands.restore import build_rollback
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import Resume
from springtide.app.version_log.read.version_range import VersionImage
from springtide.app.version_log.tables import tables_of
from springtide.app.version_log.verify.verify import verify
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import VersionMeta
from springtide_client.keys import CROSSES
from springtide_client.log.base import Base, TableSpec
from springtide_client.rows.initial_values import initial_values
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import FEATURES, SCHEMA, TABLE, TABLES, WriterLog, config

WIDE = 5  # numbers of the wide part beside a row, for one label
WIDE_TABLE = with_fields(TABLE, state_width=TABLE.state_width + WIDE, wide_width=WIDE)
WIDE_ITEMS = with_fields(TABLES["dim3"], state_width=2 + WIDE, wide_width=WIDE)
Rows = dict[tuple[int, int], tuple[list[float], list[float], int, int]]


@pytest.fixture
def log(tmp_path) -> WriterLog:
    """A log whose last rows are newer than its base."""
    log = WriterLog(tmp_path / "log", tables=TABLES)
    with log.writer() as writer:
        random = RandomVersions(log, writer, features=FEATURES)
        random.write(20)
        random.compact()
        random.write(10)
        writer.sync()
    return log


def signature(
    base: Base, main: TableSpec = TABLE, tables: Mapping[str, TableSpec] = TABLES, **changes
) -> ModelSignature:
    return replace(ModelSignature.of(base), table=main, tables=dict(tables), **changes)


def change(log: WriterLog, new: ModelSignature) -> tuple[Base, Plan]:
    """Begin an epoch with this signature, as a trainer does, and append an empty version."""
    with LogWriter.open(config(log.path), schema=new.schema) as writer:
        resume = Resume.of(log.directory, writer.last_encoded)
        old = ModelSignature.of(resume.base)
        plan = plan_change(old, new)
        begun = start_migrated(writer, resume, plan, old, new, initial={}, program=None, window_samples=100)
        writer.append(VersionMeta(fingerprint=new.schema.fingerprint()), {})
        writer.sync()
    assert verify(log.directory, deep=True).errors == []
    return begun.base, plan


def rows_of(base: Base) -> Rows:
    found: Rows = {}
    for table in tables_of(base.manifest):
        found |= rows_of_layer(table.base_layer(base))
    return found


def rows_of_layer(layer: RowBlock) -> Rows:
    return {
        (int(layer.feature[i]), int(layer.id[i])): (
            layer.value[i].tolist(),
            layer.state[i].tolist(),
            int(layer.count[i]),
            int(layer.last_seen[i]),
        )
        for i in range(len(layer))
    }


def newest_rows(log: WriterLog) -> Rows:
    """Return the rows of the newest version, by a base of it in the same signature."""
    base = log.directory.open_base()
    return rows_of(change(log, signature(base, init_change(base)))[0])


def init_change(base: Base) -> TableSpec:
    """Return the main table with another scale of first values: a change that carries every row as it is."""
    return with_fields(base.manifest.table, init_scale=base.manifest.table.init_scale + 1)


def test_everything_is_carried_where_nothing_of_a_row_changes(log: WriterLog) -> None:
    image = VersionImage(LogIndex(log.directory), LogIndex(log.directory).numbers[-1])
    keys = {(int(f), int(i)) for rows in image.rows() for f, i in zip(rows.feature, rows.id, strict=True)}
    rows = newest_rows(log)
    assert rows.keys() == keys
    assert {feature for feature, _ in keys} == set(FEATURES)
    assert newest_rows(log) == rows


def test_the_rows_of_a_feature_that_moves_begin_anew_and_keep_counts_and_times(log: WriterLog) -> None:
    before = newest_rows(log)
    base = log.directory.open_base()
    begun, plan = change(log, signature(base, tables={"crosses": TABLES["crosses"]}))
    assert "[features.item_id] dim (3, now 2)" in plan.changes
    assert "vectors and optimizer states of the rows of item_id, from their first values" in plan.begun
    assert "rows of crosses" in plan.kept
    assert not (begun.path / "rows.dim3.safetensors").exists()
    after = rows_of(begun)
    assert after.keys() == before.keys()
    for key, (value, state, count, seen) in after.items():
        assert (count, seen) == before[key][2:]
        if key[0] == 1:
            features, ids = np.array([1], np.uint16), np.array([key[1]])
            first = initial_values(features, ids, dim=2, seed=TABLE.seed, scale=TABLE.init_scale)
            assert (value, state) == (first[0].tolist(), [0.0])
        else:
            assert (value, state) == before[key][:2]


def test_a_table_that_appears_takes_the_rows_of_its_features(log: WriterLog) -> None:
    before = newest_rows(log)
    base = log.directory.open_base()
    users = TableSpec(dim=2, state_width=1, seed=7, init_scale=0.01, features=[0])  # as wide as they were
    begun, plan = change(log, signature(base, tables={**TABLES, "dim2": users}))
    assert "[features.user_id] table (main, now dim2)" in plan.changes
    assert len(begun.main.rows) == 0
    assert rows_of(begun) == before


def test_crosses_are_dropped_and_begin_empty(log: WriterLog) -> None:
    before = newest_rows(log)
    base = log.directory.open_base()
    wide = signature(base, WIDE_TABLE, {"dim3": WIDE_ITEMS})
    begun, plan = change(log, wide)
    assert "rows of crosses" in plan.dropped
    assert rows_of(begun).keys() == {key for key in before if key[0] != CROSSES}
    begun, plan = change(log, signature(base, WIDE_TABLE, {"dim3": WIDE_ITEMS, "crosses": TABLES["crosses"]}))
    assert "rows of crosses" in plan.begun
    assert len(begun.tables["crosses"].rows) == 0


def test_turning_the_wide_part_on_and_off_keeps_everything_else_of_a_row(log: WriterLog) -> None:
    before = newest_rows(log)
    base = log.directory.open_base()
    narrow = ModelSignature.of(base)
    main = with_fields(WIDE_TABLE, init_scale=narrow.table.init_scale)
    begun, plan = change(log, signature(base, main, {**TABLES, "dim3": WIDE_ITEMS}))
    assert plan.changes == ("[model] wide (False, now True)",)
    assert "the wide part's weights of those rows" in plan.begun
    wide = rows_of(begun)
    assert wide == {
        key: (value, state + [0.0] * (0 if key[0] == CROSSES else WIDE), count, seen)
        for key, (value, state, count, seen) in before.items()
    }
    begun, plan = change(log, narrow)
    assert "the wide part's weights of those rows" in plan.dropped
    assert rows_of(begun) == before


def test_the_wide_part_keeps_the_weights_of_the_labels_that_stay(log: WriterLog) -> None:
    base = log.directory.open_base()
    main = with_fields(TABLE, state_width=1 + 9, wide_width=9)
    two = Schema(labels=("click", "buy"), categorical=SCHEMA.categorical)
    pairs = with_fields(TABLES["crosses"], dim=4)
    change(log, signature(base, main, {"crosses": pairs}, schema=two))
    numbers = np.arange(1, 10, dtype=np.float32)
    with LogWriter.open(config(log.path), schema=two) as writer:
        key = {"feature": np.array([0], np.uint16), "id": np.array([999])}
        cross = {"feature": np.array([CROSSES], np.uint16), "id": np.array([5])}
        times = {"count": np.array([3]), "last_seen": np.array([70_000])}
        user = {**key, **times, "value": np.ones((1, 2), np.float32), "state": np.array([[8, *numbers]], np.float32)}
        pair = {**cross, **times, "value": np.array([[1, 2, 3, 4]], np.float32)}
        arrays = {f"rows.{n}": a for n, a in user.items()} | {f"crosses/rows.{n}": a for n, a in pair.items()}
        number = writer.append(VersionMeta(fingerprint=two.fingerprint()), arrays).number
        writer.sync()
    other = Schema(labels=("like", "buy"), categorical=SCHEMA.categorical)
    begun, plan = change(log, signature(base, main, {"crosses": pairs}, schema=other))
    rows = rows_of(begun)
    # of four numbers by label, then one of all
    assert rows[0, 999] == ([1, 1], [8, 0, 0, 0, 0, 5, 6, 7, 8, 9], 3, 70_000)
    assert rows[CROSSES, 5][0] == [0, 0, 3, 4]
    assert "the wide part's weights for click" in plan.dropped
    assert "the wide part's weights for like" in plan.begun
    rollback = build_rollback(log.directory, number, window_samples=100)
    assert "crosses/rows.value" not in rollback.arrays  # it would restore what is there


@pytest.mark.parametrize(
    "point", ["while a base is written", "before a base is renamed", "before a changed schema begins"]
)
def test_a_start_that_is_killed_while_tables_are_carried_is_made_good_by_the_next(
    log: WriterLog, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = newest_rows(log)
    base = log.directory.open_base()
    assert base is not None

    class KilledError(BaseException):
        """Stands for SIGKILL: nothing handles it."""

    def die(name: str) -> None:
        if name == point:
            raise KilledError(name)

    new = signature(base, tables={"crosses": TABLES["crosses"]})
    with monkeypatch.context() as patch:
        for module in ("change.start_migrated", "compact.base_writer"):
            patch.setattr(f"springtide.app.version_log.{module}.failpoint", die)
        with pytest.raises(KilledError):
            change(log, new)
    assert log.directory.open_base() is not None
    assert rows_of(log.directory.open_base() or base) == before
    begun, _ = change(log, new)
    assert {key: row[2:] for key, row in rows_of(begun).items()} == {key: row[2:] for key, row in before.items()}


def test_a_rollback_across_the_change_restores_every_table_as_far_as_it_fits(log: WriterLog) -> None:
    number = LogIndex(log.directory).numbers[-1]
    before = newest_rows(log)
    base = log.directory.open_base()
    change(log, signature(base, tables={"dim3": TABLES["dim3"]}))  # without crosses
    forgotten = [key for key in before if key[0] == 1][:3]
    with LogWriter.open(config(log.path), schema=SCHEMA) as writer:
        deleted = {
            "forgotten.feature": np.array([1] * 3, np.uint16),
            "forgotten.id": np.array([row_id for _, row_id in forgotten]),
        }
        writer.append(VersionMeta(fingerprint=SCHEMA.fingerprint()), deleted)
        writer.sync()
        rollback = build_rollback(log.directory, number, window_samples=100)
        assert rollback.counts == {"rows": 3, "forgotten": 0}
        assert rollback.plan is not None
        assert "rows of crosses" in rollback.plan.dropped
        writer.append(rollback.meta, rollback.arrays)
        writer.sync()
    assert newest_rows(log) == {key: row for key, row in before.items() if key[0] != CROSSES}
