"""Raw fetches: lets one kafka-python consumer return the fetched bytes, and observes its fetches.

This is the only module that uses private names of kafka-python: `PartitionRecords`, `_append`, `_handle_fetch_response`
and `_create_fetch_requests` of one consumer's fetcher. The library's version is pinned and a test checks for the names.
Without them PartitionConsumer polls record objects instead: the same records, slower, and freshness is reported a
second late.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from springtide.stream.columns import RawRecords
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.record_batches import RecordBatchParser
from springtide.stream.positions import Partition

MAX_WAIT_MS = 500
DECAY = 0.9
# a scan in progress when the wait ends delays the response by a part of its own duration: three responses of four are
# delayed by less than this part of a scan, so twice that delay leaves room for a whole scan
NUM_DELAYS, DELAY_QUANTILE, DELAY_FACTOR = 16, 0.75, 2.0


class AdaptiveFetchWait:
    """Adapts how long the broker may hold a fetch (fetch.max.wait.ms) to the broker's responses.

    Kafka responds as soon as it has data, however long it may wait. The embedded broker (Tansu) scans every batch of a
    partition, 0.5 µs each, once more for each new batch, and when the wait is over returns whatever it has found. Too
    short a wait therefore returns nothing, for ever; too long a wait delays records and keeps the broker's core busy
    scanning.

    The wait doubles while responses fall behind the partition's end, and otherwise decays. It stays between `min_ms`
    and MAX_WAIT_MS, and decays no further than the recent delays of responses require.
    """

    def __init__(self, min_ms: int) -> None:
        self.min_ms = min_ms
        self._ms = float(min_ms)
        self._delays_ms: deque[float] = deque(maxlen=NUM_DELAYS)

    @property
    def ms(self) -> int:
        """The wait for the next fetch."""
        return round(self._ms)

    def observe_delay(self, ms: float) -> None:
        """Note how long after its wait a response arrived; negative if it arrived before the wait was over."""
        self._delays_ms.append(max(0.0, ms))

    def observe_response(self, num_records: int, num_behind: int, *, is_full: bool = False) -> None:
        """Note that a response returned `num_records` and left `num_behind` more up to the partition's end.

        A full response had no room for the rest, so it says nothing about the wait. Records left behind are normal
        (they were produced while the response was made) unless they are more than the response returned.
        """
        if num_behind > num_records and not is_full:
            self._ms = max(self._ms, min(MAX_WAIT_MS, 2 * max(1.0, self._ms)))
        else:
            self._ms = min(self._ms, max(self.min_ms, self._scan_ms, DECAY * self._ms))

    @property
    def _scan_ms(self) -> float:
        """How long a whole scan of the partition takes, estimated from the delays."""
        delays_ms = sorted(self._delays_ms)
        return DELAY_FACTOR * delays_ms[int(DELAY_QUANTILE * (len(delays_ms) - 1))] if delays_ms else 0.0


# a response that arrives this long after poll() was called has been waited for, and did not lie in the socket before
WAITED_SECONDS = 0.001


@dataclass
class RawBatch:
    """Takes the place of a record in the consumer and carries a whole fetch; the consumer reads its offset only."""

    offset: int
    raw: RawRecords


class PartitionEnd(NamedTuple):
    """Where a partition ended, and the monotonic time at which the fetch that returned it was sent."""

    offset: int
    requested_at: float


def supports_raw_fetch(consumer: Any) -> bool:
    """Return True if this kafka-python has the private names that install_raw_fetch() replaces."""
    fetcher = getattr(consumer, "_fetcher", None)
    records = getattr(fetcher, "PartitionRecords", None)
    return (
        records is not None
        and hasattr(fetcher, "_append")
        and all(
            hasattr(records, name)
            for name in ("_unpack_records", "drain", "_consume_aborted_transactions_up_to", "_is_batch_aborted")
        )
    )


def install_raw_fetch(consumer: Any, *, max_batch_bytes: int) -> None:
    """Let this consumer's poll() return RawBatches, one or a few per fetch, instead of record objects.

    Only the instance is changed. `max_poll_records` then counts bytes after decompression, the last RawBatch may exceed
    it: what else was fetched is decompressed at the next poll.
    """
    parent: Any = consumer._fetcher.PartitionRecords
    read_committed = kafka.consumer.fetcher.IsolationLevel.READ_COMMITTED

    class PartitionRecords(parent):  # type: ignore[misc]
        def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[RawBatch]:
            def aborted(batch: Any) -> bool:
                if self.isolation_level != read_committed or not batch.has_producer_id():
                    return False
                self._consume_aborted_transactions_up_to(batch.last_offset)
                if self._contains_abort_marker(batch):
                    self.aborted_producer_ids.discard(batch.producer_id)
                    return False
                return bool(self._is_batch_aborted(batch))

            parser = RecordBatchParser(
                Partition(tp.topic, tp.partition),
                self.fetch_offset,
                aborted=aborted,
                max_batch_bytes=max_batch_bytes,
            )
            for raw in parser.parse_fetch(bytes(records._buffer)):
                # the consumer copies both into its position once it has taken the batch
                self.next_fetch_offset = parser.next_offset
                self.leader_epoch = parser.leader_epoch
                self.records_read += len(raw)
                self.bytes_read += len(raw.buffer)
                yield RawBatch(parser.next_offset, raw)
            self.drain()

    append = consumer._fetcher._append

    def append_one(drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        """Take one RawBatch; return its bytes, which the fetcher subtracts from `max_poll_records`."""
        if not append(drained, part, 1, update_offsets):
            return 0
        return max(1, len(drained[part.topic_partition][-1].raw.buffer))

    consumer._fetcher.PartitionRecords = PartitionRecords
    consumer._fetcher._append = append_one


class FetchObserver:
    """Observes one consumer's fetches: learns from the responses where partitions end, and sets each request's wait.

    ListOffsets is not enough for the ends: Tansu answers it with the base offset of the last batch + 1, short of the
    end wherever that batch holds several records. Its fetches return the true end.
    """

    def __init__(self, *, min_wait_ms: int, full_bytes: int) -> None:
        """A response of `full_bytes` or more counts as full: it had no room for what it left behind."""
        self.ends: dict[Partition, PartitionEnd] = {}
        self.polling_since = time.monotonic()
        self._full_bytes = full_bytes
        self._wait = AdaptiveFetchWait(min_wait_ms)
        self._response_bytes: int | None = None  # of the last response, until the next request
        self._requested: dict[Any, int] = {}  # by partition, the offset of its last fetch

    def observe_responses(self, consumer: Any) -> bool:
        """Observe every fetch response. Returns False, and observes nothing, where kafka-python has no such hook."""
        handle = getattr(getattr(consumer, "_fetcher", None), "_handle_fetch_response", None)
        if handle is None:
            return False

        def observe_and_handle(node_id: Any, fetch_offsets: Any, send_time: float, response: Any) -> None:
            now = time.monotonic()
            if now - self.polling_since > WAITED_SECONDS:
                self._wait.observe_delay((now - send_time) * 1000 - self._wait.ms)
            self._response_bytes = 0
            for topic in response.responses:
                for partition in topic.partitions:
                    self._response_bytes += len(partition.records or b"")
                    # readable records end before the first open transaction
                    stable = partition.last_stable_offset
                    end = stable if stable >= 0 else partition.high_watermark
                    if partition.error_code == 0 and end >= 0:
                        self.ends[Partition(topic.topic, partition.partition_index)] = PartitionEnd(end, send_time)
            handle(node_id, fetch_offsets, send_time, response)

        consumer._fetcher._handle_fetch_response = observe_and_handle
        return True

    def adapt_requests(self, consumer: Any) -> None:
        """Give each fetch request the wait that the responses before it call for."""
        fetcher = getattr(consumer, "_fetcher", None)
        create = getattr(fetcher, "_create_fetch_requests", None)
        if fetcher is None or create is None:
            return

        def create_with_wait() -> Any:
            requests = create()
            for request, fetch_offsets in requests.values():
                if self._response_bytes is not None:
                    self._observe_progress(fetch_offsets, self._response_bytes)
                    self._response_bytes = None
                self._requested.update(fetch_offsets)
                request.max_wait_ms = self._wait.ms
            return requests

        fetcher._create_fetch_requests = create_with_wait

    def _observe_progress(self, fetch_offsets: Any, response_bytes: int) -> None:
        """Compare the offsets to fetch next with those of the last request and with the partitions' ends."""
        num_records = sum(offset - self._requested.get(key, offset) for key, offset in fetch_offsets.items())
        ends = {key: self.ends.get(Partition(*key), PartitionEnd(0, 0.0)).offset for key in fetch_offsets}
        num_behind = sum(max(0, ends[key] - offset) for key, offset in fetch_offsets.items())
        self._wait.observe_response(num_records, num_behind, is_full=response_bytes >= self._full_bytes)
