"""The difference of two versions equals that of two dictionaries."""

import math
import shutil

import numpy as np
import pytest

from springtide.app.errors import UserError
from springtide.app.version_log.inspection.diff import RowCounts, diff_versions
from springtide.app.version_log.read.index import LogIndex
from springtide_client.errors import LogError
from springtide_client.format.records import VersionMeta
from springtide_client.keys import hash_string
from springtide_client.log.listing import base_name
from tests.support.damage import flip
from tests.support.random_versions import RandomVersions, World
from tests.support.writer_log import WriterLog, put, row_tensors


def expected_counts(older: World, newer: World, forgotten: set, feature: int) -> RowCounts:
    both = {key for key in older.keys() & newer.keys() if older[key] != newer[key] and key[0] == feature}
    gone = {key for key in older.keys() - newer.keys() if key[0] == feature}
    return RowCounts(
        added=sum(key[0] == feature for key in newer.keys() - older.keys()),
        changed=len(both),
        came_back=len(both & forgotten),
        erased=len(gone),  # or expired, which another test tells apart
    )


@pytest.mark.parametrize(
    ("log", "range_bytes"), [("one table", 1 << 30), ("one table", 3_000), ("three tables", 3_000)], indirect=["log"]
)
def test_counts_and_moves_equal_those_of_two_dictionaries(log: WriterLog, range_bytes: int) -> None:
    with log.writer() as writer:
        made = RandomVersions(log, writer)
        for _ in range(3):
            made.write(10)
            made.compact()
        made.write(5)
        writer.sync()
        index = LogIndex(log.directory)
        numbers = index.numbers
        for older, newer in [(0, 5), (2, 30), (11, 12), (12, 37), (0, len(numbers) - 1), (20, 20)]:
            a, b = numbers[older], numbers[newer]
            then, now = made.worlds[a], made.worlds[b]
            forgotten = set().union(*(made.forgotten[number] for number in numbers[older + 1 : newer + 1]))
            found = diff_versions(index, a, b, top=5, range_bytes=range_bytes)
            for feature in (0, 1):
                counts = found.features.get(feature, RowCounts())
                counts.erased += counts.expired
                counts.expired = 0
                assert counts == expected_counts(then, now, forgotten, feature)
            moves = sorted((abs(now[k][0] - then[k][0]) * math.sqrt(2) for k in then.keys() & now.keys()), reverse=True)
            moves = [move for move in moves if move > 0]
            assert [move.distance for move in found.moves] == pytest.approx(moves[:5])
            assert found.num_versions == newer - older
            assert found.metas[1].samples_trained == newer


def test_erased_and_expired_rows_are_counted_apart(log: WriterLog) -> None:
    with log.writer() as writer:
        rows = {(1, i): (1.0, 100 * i) for i in range(1, 8)}
        older = writer.append(VersionMeta(), row_tensors(rows))
        writer.append(VersionMeta(), row_tensors({}, [(1, 6)]))
        newer = writer.append(VersionMeta(expiry_cutoffs={"1": 300}), row_tensors({(1, 9): (2.0, 200)}))
        writer.sync()
        found = diff_versions(LogIndex(log.directory), older.number, newer.number)
    # 9 was written and expired at once: it is in neither version
    assert found.features == {1: RowCounts(erased=1, expired=2)}
    assert found.total == found.features[1]


def test_a_row_deleted_and_created_again_counts_as_changed(log: WriterLog) -> None:
    with log.writer() as writer:
        older = put(writer, 3)
        writer.append(VersionMeta(), row_tensors({}, [(0, 3)]))
        newer = writer.append(VersionMeta(), row_tensors({(0, 3): (4.0, 500)}))
        writer.sync()
        found = diff_versions(LogIndex(log.directory), older.number, newer.number)
    assert found.total == RowCounts(changed=1, came_back=1)
    assert found.moves[0].count == 1


def test_the_difference_has_id_strings_dense_parameters_and_meta(log: WriterLog) -> None:
    text, row_id = "café", hash_string("café".encode())
    texts = {
        "texts.feature": np.array([1], np.uint16),
        "texts.id": np.array([row_id], np.int64),
        "texts.offsets": np.array([0, len(text.encode())], np.int64),
        "texts.bytes": np.frombuffer(text.encode(), np.uint8),
    }
    with log.writer() as writer:
        dense = {"dense.w": np.array([3, 0, 4], np.float32), "dense.still": np.ones(2, np.float32)}
        older = writer.append(VersionMeta(), row_tensors({(1, row_id): (1.0, 5)}) | texts | dense)
        put(writer, 1)
        moved = {"dense.w": np.array([3, 1, 4], np.float32)}
        newer = writer.append(VersionMeta(samples_trained=9), row_tensors({(1, row_id): (2.0, 5)}) | moved)
        writer.sync()
        found = diff_versions(LogIndex(log.directory), older.number, newer.number)
    assert [found.display_id(move) for move in found.moves] == [text]
    changes = {change.name: (change.distance, change.relative) for change in found.dense}
    assert changes == {"w": (1.0, 0.2), "still": (0.0, 0.0)}
    assert found.feature_name(1) == "item_id"
    assert found.feature_name(32768 + 1) == "item_id (shared by ids not admitted)"


def test_a_row_with_nan_counts_as_the_largest_move(log: WriterLog) -> None:
    with log.writer() as writer:
        older = writer.append(VersionMeta(), row_tensors({(0, 1): (1.0, 5), (0, 2): (1.0, 5)}))
        rows = row_tensors({(0, 1): (9.0, 5), (0, 2): (2.0, 5)})
        rows["rows.value"] = np.array([[9.0, -9.0], [np.nan, 2.0]], np.float32)
        newer = writer.append(VersionMeta(), rows)
        writer.sync()
        found = diff_versions(LogIndex(log.directory), older.number, newer.number)
    assert (found.moves[0].id, found.moves[0].distance) == (2, math.inf)


def test_an_error_names_the_oldest_version_that_can_be_compared(log: WriterLog) -> None:
    with log.writer() as writer:
        made = RandomVersions(log, writer)
        made.write(4)
        base = made.compact()
        put(writer, 1)
        writer.sync()
        shutil.rmtree(log.path / base_name(1 << 32))
        index = LogIndex(log.directory)
        with pytest.raises(UserError, match=rf"1\.2 can no longer be rebuilt.* oldest that can be is {base.head}$"):
            diff_versions(index, index.resolve("1.2"), index.resolve("latest"))
        assert diff_versions(index, base.head.number, index.resolve("latest")).num_versions == 2


def test_a_corrupt_record_in_between_is_a_clear_error(log: WriterLog) -> None:
    with log.writer() as writer:
        heads = [put(writer, value) for value in (1, 2, 3, 4)]
        writer.sync()
    index = LogIndex(log.directory)
    place = index.find(heads[2].number)
    flip(place.frame.path, place.frame.offset + place.num_bytes - 3)
    with pytest.raises(LogError, match=r"1\.3"):
        diff_versions(index, heads[0].number, heads[3].number)
    assert diff_versions(index, heads[0].number, heads[1].number).num_versions == 1
