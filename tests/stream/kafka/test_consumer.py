from dataclasses import replace

from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.offset_gaps import GapDetector
from springtide.stream.kafka.producer import Producer
from tests.bench.freshness.event_producer import BatchSender, build_batch
from tests.support.waiting import wait_until


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
    testbed.create()
    testbed.produce([testbed.click(n) for n in range(30)])
    gaps = [7]
    monkeypatch.setattr(GapDetector, "_first_gap", lambda *_: gaps.pop() if gaps else None)
    reader = PartitionConsumer(testbed.kafka, {testbed.partition: 0}, wait_for_gaps=True)
    fetched = []
    wait_until(lambda: fetched.extend(reader.poll(0.05)) or sum(map(len, fetched)) >= 30)
    reader.close()
    assert [offset for records in fetched for offset in records.offset_N] == list(range(30))
    assert fetched[0].end == 7
