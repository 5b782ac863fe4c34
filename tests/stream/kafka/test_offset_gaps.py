from springtide.stream.kafka.offset_gaps import GAP_TIMEOUT_SECONDS, GapDetector
from springtide.stream.positions import Partition
from springtide.stream.records import RawRecords

CLICKS = Partition("clicks", 0)


def records(*offsets, end=None, partition=CLICKS):
    return RawRecords.from_messages(partition, [b"%d" % offset for offset in offsets], offsets=offsets, end=end)


def values(raws):
    return [raw.value(n) for raw in raws for n in range(len(raw))]


def test_records_without_a_gap_are_returned():
    raws, refetch = GapDetector({CLICKS: 3}).truncate([records(3, 4), records(5, end=9), records(9)])
    assert (values(raws), refetch) == ([b"3", b"4", b"5", b"9"], {})


def test_records_after_a_gap_wait_until_it_is_filled():
    gaps = GapDetector({CLICKS: 3})
    raws, refetch = gaps.truncate([records(3, 4, 6), records(7)])
    assert (values(raws), raws[-1].end, refetch) == ([b"3", b"4"], 5, {CLICKS: 5})
    raws, refetch = gaps.truncate([records(5, 6, 7)])
    assert (values(raws), refetch, gaps.num_skipped) == ([b"5", b"6", b"7"], {}, 0)


def test_a_gap_before_the_first_record_is_detected():
    raws, refetch = GapDetector({CLICKS: 3}).truncate([records(4)])
    assert (values(raws), refetch) == ([], {CLICKS: 3})


def test_a_gap_that_times_out_is_skipped():
    time = [0.0]
    gaps = GapDetector({CLICKS: 0}, clock=lambda: time[0])
    assert gaps.truncate([records(0, 2, 4)])[1] == {CLICKS: 1}
    time[0] = GAP_TIMEOUT_SECONDS / 2
    assert gaps.truncate([records(2, 4)])[1] == {CLICKS: 1}
    time[0] = GAP_TIMEOUT_SECONDS
    raws, refetch = gaps.truncate([records(2, 4)])
    assert (values(raws), refetch, gaps.num_skipped) == ([b"2"], {CLICKS: 3}, 1)  # the next gap is waited for
    time[0] = 2 * GAP_TIMEOUT_SECONDS
    raws, refetch = gaps.truncate([records(4)])
    assert (values(raws), refetch, gaps.num_skipped) == ([b"4"], {}, 2)


def test_a_gap_in_one_partition_does_not_hold_back_another():
    other = Partition("clicks", 1)
    raws, refetch = GapDetector({CLICKS: 0, other: 0}).truncate([records(1), records(0, partition=other), records(2)])
    assert (values(raws), refetch) == ([b"0"], {CLICKS: 0})
