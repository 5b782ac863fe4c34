"""Records kept for those who follow: chained by parents, bounded in bytes."""

from springtide.app.serving.feed.record_cache import RecordCache
from springtide_client.format.records import Record, Tip


def make(number: int, parent: int, size: int = 10) -> Record:
    return Record(epoch=1, number=number, parent=parent, checksum=number * 1000, payload=bytes(size))


def test_records_after_a_version_are_given_in_order() -> None:
    recent = RecordCache()
    for number in range(1, 6):
        recent.add(make(number, (number - 1) * 1000))
    assert [record.number for record in recent.after(Tip(2, 2000), 1 << 20)] == [3, 4, 5]
    assert [record.number for record in recent.after(Tip(2, 2000), 1)] == [3]
    assert recent.after(Tip(5, 5000), 1 << 20) == []
    assert recent.after(Tip(2, 999), 1 << 20) == []  # another version of that number


def test_the_oldest_records_are_dropped_and_repeated_records_count_once() -> None:
    recent = RecordCache(max_bytes=3 * make(1, 0).num_bytes)
    for number in (1, 2, 2, 3, 4):
        recent.add(make(number, (number - 1) * 1000))
    assert recent.after(Tip(0, 0), 1 << 20) == []
    assert [record.number for record in recent.after(Tip(1, 1000), 1 << 20)] == [2, 3, 4]
