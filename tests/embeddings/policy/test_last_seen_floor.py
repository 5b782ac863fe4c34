from springtide.embeddings.policy.last_seen_floor import ROWS_PARTS, LastSeenFloor

ROW_BYTES, MAX_KEYS = 100, 10


def floor() -> LastSeenFloor:
    return LastSeenFloor(MAX_KEYS * ROWS_PARTS * ROW_BYTES, ROW_BYTES)


def advance(floor: LastSeenFloor, event_ms: int, num_batches: int = 1) -> int:
    for _ in range(num_batches):
        floor.advance(event_ms)
        floor.add_keys(4)
    return floor.ms


def test_it_stays_behind_an_event_clock_that_moves() -> None:
    moving = floor()
    assert [advance(moving, ms) for ms in range(1000, 1100)] == [0] * 100


def test_a_clock_that_stands_still_moves_on_with_the_keys() -> None:
    still = floor()
    assert advance(still, 1000, 3) == 0
    assert advance(still, 1000) == 1001
    assert advance(still, 1000, 30) == 1011
    assert advance(still, 5000, 3) == 1011  # event time counts again
    assert advance(still, 5000) == 5001


def test_it_continues_where_a_version_ended() -> None:
    one, other = floor(), floor()
    for _ in range(20):
        advance(one, 1000)
        other.restore(dict(one.state()))
        assert other.state() == one.state()
        assert advance(other, 1000) == advance(one, 1000)
