import logging
import time
from dataclasses import replace

import pytest

from stream.errors import CorruptBatchError, StreamError, TopicResetError
from stream.kafka import record_batches
from stream.kafka.admin import Admin
from stream.kafka.consumer import PartitionConsumer
from stream.kafka.offset_gaps import GapDetector
from stream.kafka.producer import Producer
from stream.positions import Partition, Position
from tests.bench.freshness.event_producer import BatchSender, build_batch


def test_records_come_once_and_in_the_order_of_their_offsets(bench):
    bench.create()
    bench.produce([bench.click(n) for n in range(3000)])
    source = bench.source()
    columns = bench.read(source, 3000)
    assert bench.users(columns) == list(range(3000))
    assert bench.offsets(columns) == list(range(3000))
    assert columns[-1].end_offsets == {bench.partition: 3000}
    assert columns[-1].topic_ids[bench.partition]


def test_reading_resumes_at_a_position_inside_a_batch(bench):
    topic = bench.create()
    bench.produce([bench.click(n) for n in range(1000)])
    source = bench.source({bench.partition: Position(topic.id, 333)})
    assert bench.users(bench.read(source, 667)) == list(range(333, 1000))
    assert source.num_resets == 0


def test_record_timestamps_are_the_producers(bench):
    bench.create()
    bench.produce([bench.click(1, ts=1_700_000_000_000)], record_ms=1_700_000_000_123)
    assert bench.read(bench.source(), 1)[0].record_ms_N.tolist() == [1_700_000_000_123]


def test_tombstones_and_garbage_become_dead_letters_in_place(bench):
    bench.create()
    bench.produce([bench.click(0), None, b"{", bench.click(3), None])
    source = bench.source()
    columns = bench.read(source, 2)
    bench.until(lambda: columns.extend(source.poll(0.05)) or columns[-1].end_offsets[bench.partition] == 5)
    assert bench.users(columns) == [0, 3]
    assert [(dead.offset, dead.reason) for part in columns for dead in part.dead_letters] == [
        (1, "empty"),
        (2, "bad_json"),
        (4, "empty"),
    ]


def test_the_queue_holds_its_limit_and_the_stream_waits(bench):
    bench.create()
    bench.produce([bench.click(n) for n in range(60_000)])
    source = bench.source(queue_bytes=200_000)
    source.start()
    bench.until(lambda: source.queued_bytes > 0)
    peak = 0
    seen = []
    while len(seen) < 60_000:
        peak = max(peak, source.queued_bytes)
        seen += bench.users(source.poll(0.5))
    assert seen == list(range(60_000))
    # one item may be larger than the limit by itself
    assert peak < 200_000 + 3_000_000


def test_two_partitions_are_merged_by_event_time(bench):
    bench.create(2)
    start = int(time.time() * 1000) - 10_000_000
    bench.produce([bench.click(n, ts=start + 1000 * n) for n in range(8000)], partition=0)
    bench.produce([bench.click(n, ts=start + 1000 * n) for n in range(8000)], partition=1)
    source = bench.source()
    columns = bench.read(source, 16_000)
    latest = {0: start, 1: start}
    for part in columns:
        number = part.partitions[0].number
        latest[number] = int(part.event_ms_N.max())
        assert abs(latest[0] - latest[1]) <= 1_100_000
    assert bench.offsets(columns, 0) == list(range(8000))
    assert bench.offsets(columns, 1) == list(range(8000))


def test_a_silent_partition_does_not_hold_back_the_other(bench):
    bench.create(2)
    bench.produce([bench.click(n) for n in range(10)], partition=1)
    source = bench.source()
    assert bench.users(bench.read(source, 10)) == list(range(10))


def test_an_absent_broker_is_a_state_with_a_reason_and_no_traceback(bench, own_broker, caplog, capfd):
    source = bench.source(log_path=own_broker.log_path)
    assert source.poll(0.3) == []
    assert source.state == "waiting"
    assert "springtide run" in source.reason
    own_broker.start()
    bench.until(lambda: source.poll(0.05) == [] and "topic" in source.reason)
    assert source.state == "waiting"
    assert source.waiting_seconds > 0
    bench.broker = own_broker
    bench.create()
    bench.produce([bench.click(7)])
    assert bench.users(bench.read(source, 1)) == [7]
    assert source.state == "reading"
    assert source.waiting_seconds == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert "Traceback" not in capfd.readouterr().err


def test_a_wrong_address_is_told_in_one_line(bench):
    source = bench.source(log_path=None, bootstrap_servers="127.0.0.1:1")
    source.poll(0.3)
    assert source.state == "waiting"
    assert "127.0.0.1:1" in source.reason
    assert "\n" not in source.reason


def test_a_broker_that_comes_back_without_its_topics_begins_at_0_counted(bench, own_broker):
    bench.broker = own_broker
    own_broker.start()
    bench.create()
    bench.produce([bench.click(n) for n in range(50)])
    source = bench.source(log_path=own_broker.log_path)
    assert len(bench.users(bench.read(source, 50))) == 50
    address = own_broker.address
    own_broker._process.kill()
    bench.until(lambda: source.poll(0.01) == [] and source.state == "waiting")
    own_broker.stop()
    own_broker.start()
    assert own_broker.address == address
    bench.create()
    bench.produce([bench.click(n) for n in range(100, 300)])
    columns = bench.read(source, 200)
    assert bench.users(columns) == list(range(100, 300))
    assert source.num_resets == 1
    assert columns[-1].end_offsets == {bench.partition: 200}


def test_a_topic_made_anew_begins_at_0_even_where_it_is_longer(bench):
    bench.create()
    bench.produce([bench.click(n) for n in range(50)])
    source = bench.source()
    bench.read(source, 50)
    bench.delete()
    bench.create()
    bench.produce([bench.click(n) for n in range(100, 200)])
    assert bench.users(bench.read(source, 100)) == list(range(100, 200))
    assert source.num_resets == 1


@pytest.mark.parametrize("on_reset", ["fail", "earliest", "latest"])
def test_on_a_real_broker_the_settings_say_what_a_new_topic_means(bench, on_reset):
    bench.create()
    bench.produce([bench.click(n) for n in range(20)])
    source = bench.source(
        {bench.partition: Position("another", 5)},
        log_path=None,
        bootstrap_servers=bench.broker.address,
        on_reset=on_reset,
    )
    if on_reset == "fail":
        with pytest.raises(TopicResetError, match="on_reset"):
            bench.until(lambda: source.poll(0.1))
        assert source.state == "failed"
    elif on_reset == "earliest":
        assert bench.users(bench.read(source, 20)) == list(range(20))
    else:
        bench.until(lambda: source.poll(0.01) == [] and source.state == "reading" and source.end_offsets())
        bench.produce([bench.click(99)])
        assert bench.users(bench.read(source, 1)) == [99]
    assert source.num_resets == (on_reset != "fail")


def test_an_end_before_the_position_means_a_new_topic(bench):
    topic = bench.create()
    bench.produce([bench.click(n) for n in range(20)])
    source = bench.source({bench.partition: Position(topic.id, 500)})
    assert bench.users(bench.read(source, 20)) == list(range(20))
    assert source.num_resets == 1


def test_until_the_end_stops_at_the_end_seen_at_the_start(bench):
    bench.create()
    bench.produce([bench.click(n) for n in range(500)])
    source = bench.source()
    source.stop_at_end()
    columns = bench.read(source, 1)
    bench.produce([bench.click(n) for n in range(500, 600)])
    bench.until(lambda: columns.extend(source.poll(0.01)) or source.finished)
    assert bench.users(columns) == list(range(500))
    assert source.poll(0.01) == []
    assert source.state == "finished"


def test_stop_at_cuts_inside_a_batch(bench):
    bench.create()
    bench.produce([bench.click(n) for n in range(100)])
    source = bench.source()
    source.stop_at({bench.partition: 42})
    columns = []
    bench.until(lambda: columns.extend(source.poll(0.01)) or source.finished)
    assert bench.users(columns) == list(range(42))
    assert columns[-1].end_offsets == {bench.partition: 42}


def test_an_empty_topic_is_finished_at_once(bench):
    bench.create()
    source = bench.source()
    source.stop_at_end()
    bench.until(lambda: source.poll(0.01) == [] and source.finished)


def test_caught_up_is_told_only_when_everything_readable_has_been_handed_out(bench):
    topic = bench.create()
    bench.produce([bench.click(n) for n in range(200)])
    produced_ms = time.time() * 1000
    source = bench.source()
    source.start()
    bench.until(lambda: source.queued_bytes)
    assert source.caught_up_ms is None
    bench.read(source, 200)
    first = bench.until(lambda: source.poll(0.01) == [] and source.caught_up_ms)
    assert first >= produced_ms - 1000
    bench.until(lambda: source.poll(0.01) == [] and source.caught_up_ms > first)
    assert source.caught_up_ms <= time.time() * 1000
    assert source.complete_until_ms({bench.partition: Position(topic.id, 199)}) is None
    assert source.complete_until_ms({bench.partition: Position(topic.id, 200)}) >= first


def test_large_messages_pass_whole(bench):
    bench.create()
    large = b'{"user_id": 1, "click": 1, "ts": %d, "comment": "%s"}' % (int(time.time() * 1000), b"x" * (5 << 20))
    bench.produce([bench.click(0), large, bench.click(2)])
    source = bench.source(max_message_bytes=8 << 20)
    assert bench.users(bench.read(source, 3)) == [0, 1, 2]


def test_positions_are_reported_to_the_group_without_joining_it(bench):
    bench.create()
    bench.produce([bench.click(n) for n in range(5)])
    source = bench.source(group="springtide-test")
    bench.read(source, 5)
    source.report_offsets({bench.partition: 4})

    def reported():
        with Admin(bench.kafka) as admin:
            groups = admin.client.list_group_offsets("springtide-test")
            return [told.offset for told in groups["springtide-test"].values()]

    bench.until(lambda: reported() == [4])


def test_a_bug_in_decoding_is_raised_by_poll(bench):
    bench.create()
    bench.produce([bench.click(1)])
    source = bench.source()
    source._decoder = None
    with pytest.raises(AttributeError):
        bench.until(lambda: source.poll(0.1))


def test_nobody_creates_the_topic_by_looking_for_it(bench):
    source = bench.source()
    bench.until(lambda: source.poll(0.05) == [] and "topic" in source.reason)
    with Admin(bench.kafka) as admin:
        assert bench.name not in admin.topics()


def test_settings_that_cannot_be_are_refused(bench):
    with pytest.raises(ValueError, match="on_reset"):
        bench.source(on_reset="maybe")
    with pytest.raises(ValueError, match="host:port"):
        bench.source(bootstrap_servers="localhost")
    assert isinstance(Partition("a", 1), tuple)
    assert issubclass(TopicResetError, StreamError)


def test_a_batch_that_stays_broken_ends_the_reading_after_what_comes_before(bench, monkeypatch):
    bench.create()
    bench.produce([bench.click(1)])
    source = bench.source()
    assert bench.users(bench.read(source, 1)) == [1]
    monkeypatch.setattr(record_batches.crc32c, "crc32c", lambda content: -1)
    bench.produce([bench.click(2)])
    with pytest.raises(CorruptBatchError, match="checksum"):
        bench.until(lambda: source.poll(0.1))
    assert source.state == "failed"


def test_a_fetch_that_was_cut_short_is_granted_more_time(bench):
    bench.create()
    with Producer(bench.kafka) as producer:
        for n in range(40):
            producer.send(bench.name, bench.click(n))
            producer.flush()  # each its own batch
    # one byte: each answer holds a single batch, as if the broker's time had been over then
    reader = PartitionConsumer(replace(bench.kafka, fetch_wait_ms=7, fetch_bytes=1), {bench.partition: 0})
    fetcher, asked = reader.consumer._fetcher, {}
    create = fetcher._create_fetch_requests

    def create_and_note():
        requests = create()
        for request, offsets in requests.values():
            asked.setdefault(next(iter(offsets.values())), request.max_wait_ms)
        return requests

    fetcher._create_fetch_requests = create_and_note
    fetched = []
    bench.until(lambda: fetched.extend(reader.poll(0.05)) or 40 in asked)
    reader.close()
    assert sum(map(len, fetched)) == 40
    assert [asked[offset] for offset in range(8)] == [7, 14, 28, 56, 112, 224, 448, 500]
    assert asked[38] == 500  # the longest
    assert asked[40] < 500  # the answer before reached the end


def test_many_small_batches_do_not_starve_who_reads_the_newest(bench):
    bench.create()
    number = 6_000  # Tansu looks through them for 3 ms, each time
    batch = build_batch([bench.click(0)])
    with BatchSender(bench.kafka.bootstrap_servers, bench.name) as sender:
        for _ in range(number):
            sender.send(batch)
    reader = PartitionConsumer(replace(bench.kafka, fetch_wait_ms=1), {bench.partition: number - 1})
    fetched = []
    bench.until(lambda: fetched.extend(reader.poll(0.05)) or fetched)
    reader.close()
    assert [len(records) for records in fetched] == [1]


def test_from_a_hole_on_is_fetched_again(bench, monkeypatch):
    bench.create()
    bench.produce([bench.click(n) for n in range(30)])
    holes = [7]
    monkeypatch.setattr(GapDetector, "_first", lambda *_: holes.pop() if holes else None)
    reader = PartitionConsumer(bench.kafka, {bench.partition: 0}, whole=True)
    fetched = []
    bench.until(lambda: fetched.extend(reader.poll(0.05)) or sum(map(len, fetched)) >= 30)
    reader.close()
    assert [offset for records in fetched for offset in records.offset_N] == list(range(30))
    assert fetched[0].end == 7
