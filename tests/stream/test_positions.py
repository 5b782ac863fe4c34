from springtide.stream.positions import (
    ALL_PARTITIONS,
    Partition,
    PartitionShare,
    Position,
    positions_from_meta,
    positions_to_meta,
)


def test_a_partition_whose_topic_contains_a_slash_is_parsed_back():
    partition = Partition("a/b", 3)
    assert Partition.parse(str(partition)) == partition


def test_positions_are_read_back_as_written():
    positions = {Partition("clicks", 0): Position("t", 5), Partition("clicks", 1): Position("", 0)}
    assert positions_from_meta(positions_to_meta(positions)) == positions


def test_an_unknown_topic_id_matches_every_topic():
    assert Position("t", 5).matches_topic("t")
    assert Position("", 5).matches_topic("t")
    assert Position("t", 5).matches_topic("")
    assert not Position("t", 5).matches_topic("other")


def test_every_partition_is_in_the_share_of_one_reader():
    partitions = [Partition("clicks", number) for number in range(5)]
    shares = [PartitionShare(rank, 3).of(partitions) for rank in range(3)]
    assert [[partition.number for partition in share] for share in shares] == [[0, 3], [1, 4], [2]]
    assert ALL_PARTITIONS.of(partitions) == tuple(partitions)
