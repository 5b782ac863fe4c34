from stream.kafka.offset_gaps import GAP_TIMEOUT_SECONDS, GapDetector
from stream.positions import Partition
from stream.records import RawRecords

CLICKS = Partition("clicks", 0)


def records(*offsets, end=None, partition=CLICKS):
    return RawRecords.from_messages(partition, [b"%d" % offset for offset in offsets], offsets=offsets, end=end)


def values(raws):
    return [raw.value(n) for raw in raws for n in range(len(raw))]


def test_without_a_hole_all_is_handed_on():
    raws, again = GapDetector({CLICKS: 3}).truncate([records(3, 4), records(5, end=9), records(9)])
    assert (values(raws), again) == ([b"3", b"4", b"5", b"9"], {})


def test_what_lies_behind_a_hole_waits_until_it_is_filled():
    holes = GapDetector({CLICKS: 3})
    raws, again = holes.truncate([records(3, 4, 6), records(7)])
    assert (values(raws), raws[-1].end, again) == ([b"3", b"4"], 5, {CLICKS: 5})
    raws, again = holes.truncate([records(5, 6, 7)])
    assert (values(raws), again, holes.num_skipped) == ([b"5", b"6", b"7"], {}, 0)


def test_a_hole_before_the_first_record_is_one_too():
    raws, again = GapDetector({CLICKS: 3}).truncate([records(4)])
    assert (values(raws), again) == ([], {CLICKS: 3})


def test_a_hole_that_nobody_fills_is_passed():
    time = [0.0]
    holes = GapDetector({CLICKS: 0}, clock=lambda: time[0])
    assert holes.truncate([records(0, 2, 4)])[1] == {CLICKS: 1}
    time[0] = GAP_TIMEOUT_SECONDS / 2
    assert holes.truncate([records(2, 4)])[1] == {CLICKS: 1}
    time[0] = GAP_TIMEOUT_SECONDS
    raws, again = holes.truncate([records(2, 4)])
    assert (values(raws), again, holes.num_skipped) == ([b"2"], {CLICKS: 3}, 1)  # the next is waited for anew
    time[0] = 2 * GAP_TIMEOUT_SECONDS
    raws, again = holes.truncate([records(4)])
    assert (values(raws), again, holes.num_skipped) == ([b"4"], {}, 2)


def test_a_hole_in_one_partition_holds_back_no_other():
    other = Partition("clicks", 1)
    raws, again = GapDetector({CLICKS: 0, other: 0}).truncate([records(1), records(0, partition=other), records(2)])
    assert (values(raws), again) == ([b"0"], {CLICKS: 0})
