import logging
import time
from contextlib import suppress

import pytest

from springtide.stream import consumer_loop
from springtide.stream.errors import CorruptBatchError, StreamError, TopicResetError
from springtide.stream.kafka import record_batches
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.library import kafka
from springtide.stream.positions import Partition, PartitionShare, Position
from tests.support.waiting import wait_until


def test_records_come_once_and_in_the_order_of_their_offsets(testbed):
    testbed.fill(range(3000))
    source = testbed.source()
    columns = testbed.read(source, 3000)
    assert testbed.users(columns) == list(range(3000))
    assert testbed.offsets(columns) == list(range(3000))
    assert columns[-1].end_offsets == {testbed.partition: 3000}
    assert columns[-1].topic_ids[testbed.partition]


def test_reading_resumes_at_a_position_inside_a_batch(testbed):
    topic = testbed.fill(range(1000))
    source = testbed.source({testbed.partition: Position(topic.id, 333)})
    assert testbed.users(testbed.read(source, 667)) == list(range(333, 1000))
    assert source.status.num_resets == 0


def test_readers_share_the_partitions_and_one_without_any_finishes_with_the_others(testbed):
    testbed.create(3)
    for number in range(3):
        testbed.produce([testbed.click(number)] * (number + 1), partition=number)
    sources = [testbed.source({}, PartitionShare(rank, 4)) for rank in range(4)]
    for source in sources:
        source.stop_at_end()
        source.start()
    users = [testbed.users(testbed.read(source, rank + 1)) if rank < 3 else [] for rank, source in enumerate(sources)]
    assert users == [[0], [1, 1], [2, 2, 2], []]
    wait_until(lambda: all(source.poll(0.01) == [] and source.finished for source in sources), "all ends")
    assert [source.has_partitions for source in sources] == [True, True, True, False]
    assert [len(source.end_offsets()) for source in sources] == [1, 1, 1, 0]


def test_record_timestamps_are_those_of_the_producer(testbed):
    testbed.create()
    testbed.produce([testbed.click(1, ts=1_700_000_000_000)], record_ms=1_700_000_000_123)
    assert testbed.read(testbed.source(), 1)[0].record_ms_N.tolist() == [1_700_000_000_123]


def test_tombstones_and_garbage_become_dead_letters_in_place(testbed):
    testbed.create()
    testbed.produce([testbed.click(0), None, b"{", testbed.click(3), None])
    source = testbed.source()
    columns = testbed.read(source, 2)
    wait_until(lambda: columns.extend(source.poll(0.05)) or columns[-1].end_offsets[testbed.partition] == 5)
    assert testbed.users(columns) == [0, 3]
    assert [(dead.offset, dead.reason) for part in columns for dead in part.dead_letters] == [
        (1, "empty"),
        (2, "bad_json"),
        (4, "empty"),
    ]


def test_reading_stops_while_the_queue_is_full(testbed):
    testbed.fill(range(60_000))
    source = testbed.source(queue_bytes=200_000)
    source.start()
    wait_until(lambda: source._queue.num_bytes > 0)
    peak = 0
    seen = []
    while len(seen) < 60_000:
        peak = max(peak, source._queue.num_bytes)
        seen += testbed.users(source.poll(0.5))
    assert seen == list(range(60_000))
    # one item may be larger than the limit by itself
    assert peak < 200_000 + 3_000_000


def test_the_end_moves_on_while_the_queue_is_full(testbed, monkeypatch):
    monkeypatch.setattr(consumer_loop, "FULL_CHECK_SECONDS", 0.05)
    testbed.fill(range(20_000))
    source = testbed.source(queue_bytes=1000)
    source.start()
    wait_until(lambda: source._queue.num_bytes > 1000 and source.end_offsets(), "a full queue")
    before = source.end_offsets()[testbed.partition]
    for n in range(3):
        testbed.produce([testbed.click(n)])
    wait_until(lambda: source.end_offsets()[testbed.partition] > before, "the new end")
    assert len(testbed.users(testbed.read(source, 20_003))) == 20_003


def test_two_partitions_are_merged_by_event_time(testbed):
    testbed.create(2)
    start = int(time.time() * 1000) - 10_000_000
    testbed.produce([testbed.click(n, ts=start + 1000 * n) for n in range(8000)], partition=0)
    testbed.produce([testbed.click(n, ts=start + 1000 * n) for n in range(8000)], partition=1)
    source = testbed.source()
    columns = testbed.read(source, 16_000)
    latest = {0: start, 1: start}
    for part in columns:
        number = part.partitions[0].number
        latest[number] = int(part.event_ms_N.max())
        assert abs(latest[0] - latest[1]) <= 1_100_000
    assert testbed.offsets(columns, 0) == list(range(8000))
    assert testbed.offsets(columns, 1) == list(range(8000))


def test_a_silent_partition_does_not_hold_back_the_other(testbed):
    testbed.create(2)
    testbed.produce([testbed.click(n) for n in range(10)], partition=1)
    source = testbed.source()
    assert testbed.users(testbed.read(source, 10)) == list(range(10))


def test_an_unavailable_broker_is_a_state_with_a_reason_and_no_traceback(testbed, own_broker, caplog, capfd):
    source = testbed.source(log_path=own_broker.log_path)
    wait_until(lambda: source.poll(0.05) == [] and source.status.state == "waiting")
    assert "springtide run" in source.status.reason
    own_broker.start()
    wait_until(lambda: source.poll(0.05) == [] and "topic" in source.status.reason)
    assert source.status.state == "waiting"
    assert source.status.waiting_seconds > 0
    testbed.broker = own_broker
    testbed.create()
    testbed.produce([testbed.click(7)])
    assert testbed.users(testbed.read(source, 1)) == [7]
    assert source.status.state == "reading"
    assert source.status.waiting_seconds == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert "Traceback" not in capfd.readouterr().err


def test_a_wrong_address_is_reported_in_one_line(testbed):
    source = testbed.source(log_path=None, bootstrap_servers="127.0.0.1:1")
    wait_until(lambda: source.poll(0.05) == [] and source.status.state == "waiting")
    assert "127.0.0.1:1" in source.status.reason
    assert "\n" not in source.status.reason


def test_a_broker_that_restarts_without_its_topics_is_read_from_0_and_counted(testbed, own_broker):
    testbed.broker = own_broker
    own_broker.start()
    testbed.fill(range(50))
    source = testbed.source(log_path=own_broker.log_path)
    assert len(testbed.users(testbed.read(source, 50))) == 50
    address = own_broker.address
    own_broker._process.kill()
    wait_until(lambda: source.poll(0.01) == [] and source.status.state == "waiting")
    own_broker.stop()
    own_broker.start()
    assert own_broker.address == address
    testbed.fill(range(100, 300))
    columns = testbed.read(source, 200)
    assert testbed.users(columns) == list(range(100, 300))
    assert source.status.num_resets == 1
    assert columns[-1].end_offsets == {testbed.partition: 200}


def test_a_re_created_topic_is_read_from_0_even_if_it_is_longer(testbed):
    testbed.fill(range(50))
    source = testbed.source()
    testbed.read(source, 50)
    testbed.delete()
    testbed.fill(range(100, 200))
    assert testbed.users(testbed.read(source, 100)) == list(range(100, 200))
    assert source.status.num_resets == 1


@pytest.mark.parametrize("on_reset", ["fail", "earliest", "latest"])
def test_on_reset_decides_what_happens_to_a_re_created_topic_of_a_real_broker(testbed, on_reset):
    testbed.fill(range(20))
    source = testbed.source(
        {testbed.partition: Position("another", 5)},
        log_path=None,
        bootstrap_servers=testbed.broker.address,
        on_reset=on_reset,
    )
    if on_reset == "fail":
        with pytest.raises(TopicResetError, match="on_reset"):
            wait_until(lambda: source.poll(0.1))
        assert source.status.state == "failed"
    elif on_reset == "earliest":
        assert testbed.users(testbed.read(source, 20)) == list(range(20))
    else:
        wait_until(lambda: source.poll(0.01) == [] and source.status.state == "reading" and source.end_offsets())
        testbed.produce([testbed.click(99)])
        assert testbed.users(testbed.read(source, 1)) == [99]
    assert source.status.num_resets == (on_reset != "fail")


def test_an_end_before_the_position_is_a_topic_reset(testbed):
    topic = testbed.fill(range(20))
    source = testbed.source({testbed.partition: Position(topic.id, 500)})
    assert testbed.users(testbed.read(source, 20)) == list(range(20))
    assert source.status.num_resets == 1


def test_stop_at_end_stops_at_the_end_seen_at_the_start(testbed):
    testbed.fill(range(500))
    source = testbed.source()
    source.stop_at_end()
    columns = testbed.read(source, 1)
    testbed.produce([testbed.click(n) for n in range(500, 600)])
    wait_until(lambda: columns.extend(source.poll(0.01)) or source.finished)
    assert testbed.users(columns) == list(range(500))
    assert source.poll(0.01) == []
    assert source.status.state == "finished"


def test_stop_at_cuts_inside_a_batch(testbed):
    testbed.fill(range(100))
    source = testbed.source()
    source.stop_at({testbed.partition: 42})
    columns = []
    wait_until(lambda: columns.extend(source.poll(0.01)) or source.finished)
    assert testbed.users(columns) == list(range(42))
    assert columns[-1].end_offsets == {testbed.partition: 42}


def test_an_empty_topic_is_finished_at_once(testbed):
    testbed.create()
    source = testbed.source()
    source.stop_at_end()
    wait_until(lambda: source.poll(0.01) == [] and source.finished)


def test_complete_until_ms_is_known_only_after_everything_readable_was_learned(testbed):
    topic = testbed.fill(range(200))
    produced_ms = time.time() * 1000
    source = testbed.source()
    source.start()
    end = {testbed.partition: Position(topic.id, 200)}
    wait_until(lambda: source._queue.num_bytes)
    assert source.complete_until_ms({}) is None
    testbed.read(source, 200)
    wait_until(lambda: source.poll(0.01) == [] and source.end_offsets() == {testbed.partition: 200})
    assert source.complete_until_ms({testbed.partition: Position(topic.id, 199)}) is None
    first = wait_until(lambda: source.poll(0.01) == [] and source.complete_until_ms(end))
    assert first >= produced_ms - 1000
    wait_until(lambda: source.poll(0.01) == [] and source.complete_until_ms(end) > first)
    assert source.complete_until_ms(end) <= time.time() * 1000


def test_large_messages_are_read_whole(testbed):
    testbed.create()
    testbed.configure({"max.message.bytes": str(16 << 20)})
    large = b'{"user_id": 1, "click": 1, "ts": %d, "comment": "%s"}' % (int(time.time() * 1000), b"x" * (5 << 20))
    testbed.produce([testbed.click(0), large, testbed.click(2)])
    source = testbed.source(max_message_bytes=8 << 20)
    assert testbed.users(testbed.read(source, 3)) == [0, 1, 2]


def test_positions_are_reported_to_the_group_without_joining_it(testbed):
    testbed.fill(range(5))
    source = testbed.source(group="springtide-test")
    testbed.read(source, 5)

    def reported():
        # as a trainer does: one report may be lost, the first ones while a broker makes its topic of groups
        source.report_offsets({testbed.partition: 4})
        with Admin(testbed.kafka) as admin, suppress(kafka.errors.RetriableError):
            groups = admin.client.list_group_offsets("springtide-test")
            return [committed.offset for committed in groups["springtide-test"].values()]

    wait_until(lambda: reported() == [4])


def test_an_exception_of_the_decoder_is_raised_by_poll(testbed):
    testbed.create()
    testbed.produce([testbed.click(1)])
    source = testbed.source()
    source._pipeline._decoder = None
    with pytest.raises(AttributeError):
        wait_until(lambda: source.poll(0.1))


def test_invalid_settings_are_refused(testbed):
    with pytest.raises(ValueError, match="on_reset"):
        testbed.source(on_reset="maybe")
    with pytest.raises(ValueError, match="host:port"):
        testbed.source(bootstrap_servers="localhost")
    assert isinstance(Partition("a", 1), tuple)
    assert issubclass(TopicResetError, StreamError)


def test_a_batch_that_stays_corrupt_ends_the_reading_after_the_records_before(testbed, monkeypatch):
    testbed.create()
    testbed.produce([testbed.click(1)])
    source = testbed.source()
    assert testbed.users(testbed.read(source, 1)) == [1]
    monkeypatch.setattr(record_batches.crc32c, "crc32c", lambda content: -1)
    testbed.produce([testbed.click(2)])
    with pytest.raises(CorruptBatchError, match="checksum"):
        wait_until(lambda: source.poll(0.1))
    assert source.status.state == "failed"
