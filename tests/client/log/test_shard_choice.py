"""A reader of a part reads the shard records of its keys, and a version only if all of it is there."""

import pytest

from springtide_client.format.records import Record, VersionMeta, encode_pieces
from springtide_client.format.shards import ShardEntry
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import shard_segment_name
from springtide_client.log.shard_choice import EVERY_SHARD, FOR_ASKING, ShardChoice
from springtide_client.rows.hash_range import HashRange
from tests.support.team_log import TeamLog, apply, owner

ROWS = {(0, key): (float(key), 100) for key in range(40)}


def version(num_ranks: int, sketch_blocks: int = 0) -> Record:
    meta = VersionMeta(sketch_blocks=sketch_blocks)
    entries = [ShardEntry(rank, 10 + rank) for rank in range(1, num_ranks)]
    pieces, checksum = encode_pieces(1, 5, 4, meta, {}, entries)
    return Record(1, 5, 4, checksum, b"".join(bytes(piece) for piece in pieces[1:]))


def ranks(choice: ShardChoice, record: Record) -> list[int]:
    return [entry.rank for entry in choice.needed(record)]


@pytest.mark.parametrize(
    ("text", "num_ranks", "expected"),
    [
        ("1/1", 4, [1, 2, 3]),
        ("1/2", 4, [1]),
        ("2/2", 4, [2, 3]),
        ("1/4", 4, []),
        ("3/4", 4, [2]),
        ("1/4", 2, []),
        ("3/4", 2, [1]),
        ("2/3", 2, [1]),
        ("2/2", 3, [1, 2]),
        ("none", 4, []),
        ("2/4", 1, []),
    ],
)
def test_the_ranks_whose_keys_a_part_has(text, num_ranks, expected) -> None:
    assert ranks(ShardChoice.parse(text), version(num_ranks)) == expected
    assert str(ShardChoice.parse(text)) == text


def test_counts_of_ids_without_a_row_are_not_left_out() -> None:
    own = HashRange(1, 4)
    for blocks, asking, alone in ((0, [], []), (8, [1, 2, 3], []), (6, [1, 2, 3], [1, 2, 3])):
        record = version(4, blocks)
        assert ranks(ShardChoice(own), record) == alone  # of 6 blocks, 4 ranks share some
        assert ranks(ShardChoice(own, counts_all=True), record) == asking
        assert ranks(FOR_ASKING, record) == asking


@pytest.mark.parametrize("text", ["", "0/1", "3/2", "all"])
def test_other_texts_are_refused(text) -> None:
    with pytest.raises(ValueError, match="range"):
        ShardChoice.parse(text)


def test_parts_read_their_rows_and_together_all(tmp_path) -> None:
    log = TeamLog(tmp_path / "log")
    with log.team(4) as team:
        numbers = [team.put(dict(list(ROWS.items())[:30])), team.put(ROWS, [(1, key) for key in range(20)])]
        team.sync()
    tip = log.directory.open_base().tip
    whole = list(log.directory.records(tip))
    assert [record.number for record in whole] == numbers
    for count in (2, 4):
        for number in range(1, count + 1):
            choice = ShardChoice(HashRange(number, count))
            found = list(LogDirectory(log.path, choice).records(tip))
            assert [record.tip for record in found] == [record.tip for record in whole]
            rows: dict = {}
            for record, all_of_it in zip(found, whole, strict=True):
                apply(rows, record.tensors())
                assert record.num_bytes < all_of_it.num_bytes
                assert record.num_left_out == 3 - len(choice.needed(record)) > 0
                assert choice.cut(all_of_it).frame() == record.frame()
            own = {key: row for key, row in ROWS.items() if owner(key, count) == number - 1}
            assert own.items() <= rows.items() <= ROWS.items()
    assert EVERY_SHARD.cut(whole[0]) is whole[0]


def test_a_version_is_there_for_all_parts_or_for_none(tmp_path) -> None:
    log = TeamLog(tmp_path / "log")
    with log.team(3) as team:
        first = team.put(ROWS)
        team.put(ROWS)
        team.sync()
    tip, path = log.directory.open_base().tip, log.path / shard_segment_name(1, 2, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])  # of rank 2, which the part does not read
    part = LogDirectory(log.path, ShardChoice(HashRange(1, 3)))
    with part.follow(tip) as cursor:
        assert [record.number for record in cursor.read()] == [first]
        assert cursor.read() == []
        path.write_bytes(whole)
        (second,) = cursor.read()
        assert second.num_left_out == 2
