from dataclasses import replace

from springtide.stream.columns import RawRecords
from springtide.stream.kafka.consumer import GAP_TIMEOUT_SECONDS, GapDetector, PartitionConsumer
from springtide.stream.kafka.producer import Producer
from springtide.stream.positions import Partition
from tests.bench.freshness.event_producer import BatchSender, build_batch
from tests.support.waiting import wait_until

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


def test_truncated_fetches_lengthen_the_wait(testbed):
    testbed.create()
    with Producer(testbed.kafka) as producer:
        for n in range(40):
            producer.send(testbed.name, testbed.click(n))
            producer.flush()  # each its own batch
    # one byte: each response holds a single batch, as if the broker's wait had been over then
    reader = PartitionConsumer(replace(testbed.kafka, fetch_wait_ms=7, max_fetch_bytes=1), {testbed.partition: 0})
    fetcher, waits = reader.consumer._fetcher, {}
    create = fetcher._create_fetch_requests

    def create_and_record():
        requests = create()
        for request, offsets in requests.values():
            waits.setdefault(next(iter(offsets.values())), request.max_wait_ms)
        return requests

    fetcher._create_fetch_requests = create_and_record
    fetched = []
    wait_until(lambda: fetched.extend(reader.poll(0.05)) or 40 in waits)
    reader.close()
    assert sum(map(len, fetched)) == 40
    assert [waits[offset] for offset in range(8)] == [7, 14, 28, 56, 112, 224, 448, 500]
    assert waits[38] == 500  # the maximum
    assert waits[40] < 500  # the response before reached the end


def test_many_small_batches_do_not_starve_a_reader_of_the_newest(testbed):
    testbed.create()
    number = 6_000  # Tansu scans them for 3 ms at each fetch
    batch = build_batch([testbed.click(0)])
    with BatchSender(testbed.kafka.bootstrap_servers, testbed.name) as sender:
        for _ in range(number):
            sender.send(batch)
    reader = PartitionConsumer(replace(testbed.kafka, fetch_wait_ms=1), {testbed.partition: number - 1})
    fetched = []
    wait_until(lambda: fetched.extend(reader.poll(0.05)) or fetched)
    reader.close()
    assert [len(records) for records in fetched] == [1]


def test_records_after_a_gap_are_fetched_again(testbed, monkeypatch):
    testbed.fill(range(30))
    gaps = [7]
    monkeypatch.setattr(GapDetector, "_first_gap", lambda *_: gaps.pop() if gaps else None)
    reader = PartitionConsumer(testbed.kafka, {testbed.partition: 0}, wait_for_gaps=True)
    fetched = []
    wait_until(lambda: fetched.extend(reader.poll(0.05)) or sum(map(len, fetched)) >= 30)
    reader.close()
    assert [offset for records in fetched for offset in records.offset_N] == list(range(30))
    assert fetched[0].end == 7
