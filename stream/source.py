"""The stream as the trainer sees it: decoded columns of one topic, from given positions on, read by its own thread.

Waits for an unavailable broker or topic, detects a re-created topic, holds a bounded number of bytes. Knows no model.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from springtide.stream.column_queue import ColumnQueue, columns_bytes
from springtide.stream.columns import Columns
from springtide.stream.config import SourceConfig
from springtide.stream.consumer_loop import ConsumerLoop, SourceStatus, TopicChangedError
from springtide.stream.decode.decoder import DecodePipeline, Decoder
from springtide.stream.decode.erasure_filter import Erasure, ErasureFilter
from springtide.stream.errors import CorruptBatchError, RetriableError, StreamError
from springtide.stream.join_state import JoinReport
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare, Position
from springtide.stream.watermark import IDLE_SECONDS, FreshnessTracker
from springtide_client.schema import Schema
from springtide_client.system.clock import Backoff

logger = logging.getLogger(__name__)

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 2.0
MAX_POLL_BYTES = 8 << 20
MAX_CORRUPT_FETCHES = 3


class Source(ABC):
    """Decoded samples from a stream that begins at given positions. A context manager.

    What is not abstract is that of a stream without a broker: no rank waits for it, and it ends by itself.
    """

    status: SourceStatus

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start reading; poll() does it by itself."""

    @abstractmethod
    def poll(self, timeout_seconds: float) -> list[Columns]:
        """Columns in the order to learn them; [] if none arrives in time or at the end."""

    def close(self) -> None:
        """Stop reading, and drop what is queued."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True once everything before the end has been returned by poll()."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Records that poll() has not returned, as far as is known."""

    @property
    def idle_partitions(self) -> set[Partition]:
        """Partitions that are read to their end and have had no record for IDLE_SECONDS (see WatermarkClock)."""
        return set()

    @property
    def has_partitions(self) -> bool:
        """False once the topic is found, and has no partition for this share."""
        return True

    def end_offsets(self) -> dict[Partition, int]:
        """Where the partitions ended when they were last fetched; {} before the first fetch."""
        return {}

    def complete_until_ms(self, learned: Mapping[Partition, Position]) -> int | None:
        """The wall time at which every record then readable lies before these positions; None before the first."""
        return None

    def positions_read(self, learned: Mapping[Partition, Position]) -> Mapping[Partition, Position]:
        """How far each partition is read for what was learned up to these positions: what is behind that is lag."""
        return learned

    def join_report(self) -> JoinReport | None:
        """What the join of labels holds and waits for; None without one."""
        return None

    def stop_at(self, end_offsets: Mapping[Partition, int]) -> None:
        """Return nothing at or after these offsets, and be finished there."""

    def stop_at_end(self) -> None:
        """Stop where the partitions end when the broker is next asked; before start(), where they end at the start."""

    @property
    def stop_offsets(self) -> dict[Partition, int] | None:
        """Where reading stops (see stop_at); None if it does not, or while the ends are not known yet."""
        return None

    def reset_emitted_strings(self) -> None:
        """Emit the string of every id again, in the records decoded from now on: some strings have been deleted."""

    def report_offsets(self, offsets: Mapping[Partition, int]) -> None:
        """Commit these offsets to the consumer group for monitoring tools: soon, and only if that is possible."""


class KafkaSource(Source):
    """One topic: reads, decodes and queues in a thread; poll() returns what is queued, about MAX_POLL_BYTES.

    poll() raises the StreamError that ended the reading, after everything read before it has been returned.
    """

    def __init__(
        self,
        config: SourceConfig,
        schema: Schema,
        positions: Mapping[Partition, Position] | None = None,
        *,
        erasures: Sequence[Erasure] = (),
        share: PartitionShare = ALL_PARTITIONS,
        decoder: Decoder | None = None,
        on_change: Callable[[], object] | None = None,
        read_before: Mapping[Partition, int] | None = None,
    ) -> None:
        """Partitions without a position are read from the beginning. `erasures`: ids to drop from earlier records.

        `share`: the partitions to read; there may be none, then nothing is ever returned. `decoder`: by default that of
        samples. `on_change` is called in the reading thread whenever a poll might return something else.
        `read_before`: up to where partitions were read once, if the positions are those from which they are read again.
        """
        self.status = SourceStatus(config.topic)
        decoder = decoder or Decoder(schema, config)
        self._pipeline = DecodePipeline(decoder, ErasureFilter(schema, erasures) if erasures else None)
        self._queue = ColumnQueue(config.queue_bytes, on_change=on_change)
        self._freshness = FreshnessTracker()
        self._closing = threading.Event()
        self._loop = ConsumerLoop(
            config,
            positions or {},
            decoder=self._pipeline,
            queue=self._queue,
            freshness=self._freshness,
            status=self.status,
            closing=self._closing,
            share=share,
            read_before=read_before or {},
        )
        self._thread: threading.Thread | None = None
        self._had_broker = False

    def start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="source", daemon=True)
            self._thread.start()

    def poll(self, timeout_seconds: float) -> list[Columns]:
        self.start()
        return self._queue.take(MAX_POLL_BYTES, timeout_seconds)

    def poll_while(self, has_room: Callable[[Columns], bool]) -> Iterator[Columns]:
        """What poll() returns, without a wait, one by one while there is room for the next; the rest stays queued.

        Raises what poll() raises.
        """
        self.start()
        num_bytes = MAX_POLL_BYTES
        while num_bytes > 0:
            first = self._queue.first()
            if first is not None:
                if not has_room(first):
                    return
                num_bytes -= columns_bytes(first)
            yield from (taken := self._queue.take(1, 0.0))
            if not taken:
                return

    @property
    def finished(self) -> bool:
        return self.status.state == "finished" and not self._queue

    @property
    def idle_partitions(self) -> set[Partition]:
        return self._loop.idle_partitions(IDLE_SECONDS)

    def silent_partitions(self, seconds: float) -> set[Partition]:
        """Partitions that are read and queued to the end that they have now, and have had no record for so long.

        None while the broker does not say where they end. Once the source is finished: all of them.
        """
        if self.status.state == "finished":
            return set(self._loop.queued_positions)
        if self.status.state != "reading" or not self._loop.has_fresh_ends:
            return set()
        # what is decoded may still wait for room in the queue, or for other partitions
        idle, queued, ends = self._loop.idle_partitions(seconds), self._loop.queued_positions, self._loop.ends
        return {p for p in idle if p in queued and p in ends and queued[p].offset >= ends[p]}

    def returned_positions(self) -> dict[Partition, Position]:
        """The next offsets of all partitions, if poll() has returned everything before; {} while some is queued."""
        positions = self._loop.queued_positions  # before the queue is looked at
        return {} if self._queue else dict(positions)

    @property
    def num_waiting(self) -> int:
        """Records that poll() has not returned: the queued ones, and those in the broker when it was last asked."""
        return self._queue.num_rows + self._loop.num_unfetched

    @property
    def has_partitions(self) -> bool:
        return self._loop.num_partitions != 0

    def end_offsets(self) -> dict[Partition, int]:
        return dict(self._loop.ends)

    def complete_until_ms(self, learned: Mapping[Partition, Position]) -> int | None:
        return self._freshness.complete_until_ms(self._loop.current_positions(learned))

    def stop_at(self, end_offsets: Mapping[Partition, int]) -> None:
        self._loop.stop_at(end_offsets)

    def stop_at_end(self) -> None:
        self._loop.stop_at_end()

    @property
    def stop_offsets(self) -> dict[Partition, int] | None:
        offsets = self._loop.stop_offsets
        return None if offsets is None else dict(offsets)

    def reset_emitted_strings(self) -> None:
        self._pipeline.reset_emitted_strings()

    def report_offsets(self, offsets: Mapping[Partition, int]) -> None:
        self._loop.report_offsets({p: offset for p, offset in offsets.items() if p.topic == self.status.topic})

    def end_soon(self) -> None:
        """Let the reading thread end, without waiting for it; `close` waits."""
        if not self._closing.is_set():
            self._had_broker = self.status.state in ("reading", "finished")
        self._closing.set()
        self._queue.end()

    def close(self) -> None:
        self.end_soon()
        if self._thread is not None:
            self._thread.join(10.0)
            if self._had_broker and not self._thread.is_alive():
                self._loop.report_last_offsets()
        self.status.set_ended("closed")

    def _run(self) -> None:
        """Run the consumer loop until closed or finished, with a backoff while the broker or topic is unavailable."""
        backoff = Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        num_corrupt, corrupt_positions = 0, dict(self._loop.positions)
        while not self._closing.is_set():
            try:
                self._loop.run()
            except TopicChangedError:
                continue
            except RetriableError as error:
                if self.status.state == "reading":
                    backoff.succeed()
                self.status.set_waiting(str(error))
                self._closing.wait(backoff.fail())
            except CorruptBatchError as error:
                # fetched again, to tell a fault of the network from one on the broker's disk
                num_corrupt = num_corrupt + 1 if corrupt_positions == self._loop.positions else 1
                corrupt_positions = dict(self._loop.positions)
                if num_corrupt >= MAX_CORRUPT_FETCHES:
                    self._fail(error)
                    return
            except BaseException as error:
                self._fail(error)
                return
            else:
                break
        self.status.set_ended("closed" if self._closing.is_set() else "finished")
        self._queue.end()

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, StreamError):
            logger.exception("the source's thread failed", exc_info=error)
        self.status.set_ended("failed", str(error))
        self._queue.end(error)
