"""Ranges of versions, also across gaps, and the rows of one version."""

import pytest

from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.commands.restore import build_rollback
from springtide.app.version_log.inspection.diff import diff_versions
from springtide.app.version_log.inspection.history import GONE, row_history
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import MAX_COMMANDS
from springtide.app.version_log.read.version_range import ImageRange, VersionImage, versions_between
from springtide_client.format.records import CommandEntry, NamedKey, VersionMeta
from tests.support.random_versions import PinnedLog, RandomVersions, fill, image_rows
from tests.support.writer_log import FEATURES, WriterLog, row_tensors


@pytest.mark.parametrize(
    ("log", "seed"),
    [*(("one table", seed) for seed in range(6)), ("three tables", 6), ("three tables", 7)],
    indirect=["log"],
)
def test_a_rollback_across_a_gap_restores_the_rows_except_those_erased_since(log: WriterLog, seed: int) -> None:
    with PinnedLog(log, seed) as made:
        made.leave_only_the_pin()
        index = LogIndex(log.directory)
        assert isinstance(versions_between(index, made.pinned, index.numbers[-1]), ImageRange)
        gone = {key for version, keys in made.random.ordered.items() if version > made.pinned for key in keys}
        rollback = build_rollback(log.directory, made.pinned, window_samples=100, range_bytes=2_000)
        head = made.writer.append(rollback.meta, rollback.arrays)
        made.writer.sync()
        horizon = made.random.horizon
        assert image_rows(log.directory, head.number) == {
            key: row for key, row in made.rows.items() if key not in gone and (key[0] != 1 or row[1] >= horizon)
        }


@pytest.mark.parametrize("log", ["one table", "three tables"], indirect=True)
def test_a_diff_across_a_gap_counts_what_a_dictionary_counts(log: WriterLog) -> None:
    with PinnedLog(log, 1) as made:
        made.leave_only_the_pin()
        index = LogIndex(log.directory)
        newest = max(made.random.worlds)
        then, now = made.rows, made.random.worlds[newest]
        difference = diff_versions(index, made.pinned, newest, range_bytes=2_000)
        assert difference.has_gap
        total = difference.total
        assert total.added == len(now.keys() - then.keys())
        assert total.changed == sum(then[key] != now[key] for key in then.keys() & now.keys())
        assert total.erased + total.expired == len(then.keys() - now.keys())


def test_the_history_of_a_row_goes_on_behind_a_gap(log: WriterLog) -> None:
    with PinnedLog(log, 2) as made:
        made.writer.append(VersionMeta(), row_tensors({(0, 777): (5.0, 100)}))
        made.writer.sync()
        pin_version(log.path, "latest", "later")
        fill(made.random)
        made.writer.append(VersionMeta(expiry_cutoffs={"1": made.random.horizon}), row_tensors({}, [(0, 777)]))
        made.leave_only_the_pin()
        history = row_history(LogIndex(log.directory), 0, 777, limit=10)
        assert [event.kind for event in history.events] == ["created", GONE]


def test_an_erasure_is_remembered_as_long_as_a_version_before_it_can_be_restored(log: WriterLog) -> None:
    """Also behind more commands than a base remembers otherwise."""
    key = (0, 777)
    with PinnedLog(log, 3) as made:
        made.writer.append(VersionMeta(), row_tensors({key: (5.0, 100)}))
        made.writer.sync()
        pin_version(log.path, "latest", "with-the-row")
        forget = CommandEntry(id="f", kind="forget", keys=[NamedKey("user_id", 777)])
        made.writer.append(VersionMeta(executed_commands=[forget]), row_tensors({}, [key]))
        limits = [CommandEntry(id=f"l{k}", kind="limits") for k in range(MAX_COMMANDS + 5)]
        made.writer.append(VersionMeta(executed_commands=limits), {})
        made.leave_only_the_pin()
        number = LogIndex(log.directory).resolve("with-the-row")
        assert image_rows(log.directory, number)[key] == (5.0, 100)
        rollback = build_rollback(log.directory, number, window_samples=100)
        restored = list(zip(rollback.arrays["rows.feature"].tolist(), rollback.arrays["rows.id"].tolist(), strict=True))
        assert key not in restored


@pytest.mark.parametrize("log", ["one table", "three tables"], indirect=True)
def test_each_version_has_the_rows_of_a_dictionary(log: WriterLog) -> None:
    with log.writer() as writer:
        made = RandomVersions(log, writer, features=FEATURES if log.tables else (0, 1))
        made.write(8)
        made.compact()
        made.write(8)
        writer.sync()
        index = LogIndex(log.directory)
        for number in index.numbers[::3]:
            world = made.worlds[number]
            assert image_rows(log.directory, number) == world
            image = VersionImage(index, number, range_bytes=2_000)
            for table in image.tables:
                held = {feature for feature in FEATURES if table.names.name_of(feature) == table.name}
                assert image.num_rows(table) == sum(key[0] in held for key in world)
            for feature in made.features:
                found = {int(row_id) for rows in image.rows(feature, with_values=False) for row_id in rows.id}
                assert found == {row_id for number, row_id in world if number == feature}
