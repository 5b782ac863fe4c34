from stream.positions import Partition, Position, positions_from_meta, positions_to_meta


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
