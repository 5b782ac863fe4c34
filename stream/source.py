"""The stream as the trainer sees it: decoded columns of one topic, from given positions on, in a thread of its own.

Waits for brokers and topics that are absent, notices topics made anew, holds a bounded number of bytes. Knows no model.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

from stream.columns import Columns
from stream.config import SourceConfig
from stream.consumer_loop import ConsumerLoop, TopicChangedError
from stream.decode.decoder import Decoder
from stream.decode.json_parser.seen_set import SeenSet
from stream.errors import CorruptBatchError, RetriableError, StreamError
from stream.flow.column_queue import ColumnQueue
from stream.flow.erasure_filter import Erasure, ErasureFilter
from stream.flow.freshness import FreshnessTracker
from stream.positions import Partition, Position
from stream.records import RawRecords

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
POLL_BYTES = 8 << 20  # handed out by one poll
CORRUPT_TRIES = 3
IDLE_SECONDS = 2.0


class RecordDecoder(Protocol):
    """What turns raw records into columns."""

    seen_strings: SeenSet

    def decode(self, raw: RawRecords, now_ms: int) -> Columns:
        """The records as columns, dead letters beside them."""


class Source:
    """Reads, decodes and queues; poll() hands out.

    `state` is "waiting" (`reason` tells for what), "reading", "finished" (see stop_at), "failed" or "closed".
    """

    def __init__(
        self,
        config: SourceConfig,
        schema: Schema,
        positions: Mapping[Partition, Position] | None = None,
        *,
        decoder: RecordDecoder | None = None,
        erasures: Sequence[Erasure] = (),
    ) -> None:
        """`forgettings`: ids that records before some positions do not have any more."""
        self.config = config
        self.state = "waiting"
        self.reason = "not connected yet"
        self.num_resets = 0  # how often the topic turned out to be another one, or to have lost what was asked for
        self.waiting_since: float | None = time.monotonic()
        self._decoder = decoder or Decoder(
            schema, max_message_bytes=config.max_message_bytes, max_future_seconds=config.max_future_seconds
        )
        self._session = ConsumerLoop(config, dict(positions or {}), self)
        self._queue = ColumnQueue(config.queue_bytes)
        self._marks = threading.Lock()
        self._handed: dict[Partition, Position] = dict(positions or {})
        self._caught_up = FreshnessTracker()
        self._handed_up = FreshnessTracker()
        self._closing = threading.Event()
        self._hidden = ErasureFilter(schema, erasures) if erasures else None
        self._tell_again = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Source":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to read; poll() does it by itself."""
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="source", daemon=True)
            self._thread.start()

    def poll(self, timeout_seconds: float) -> list[Columns]:
        """Columns in the order to learn them; [] when none came within the time, or the end asked for is reached.

        Raises the StreamError that stopped the reading, once everything before it has been handed out.
        """
        self.start()
        handed = self._queue.take(POLL_BYTES, timeout_seconds)
        with self._marks:
            for columns in handed:
                for partition, offset in columns.end_offsets.items():
                    self._handed[partition] = Position(columns.topic_ids.get(partition, ""), offset)
        return handed

    @property
    def finished(self) -> bool:
        """Whether everything up to the end that was asked for has been handed out."""
        return self.state == "finished" and not self._queue

    @property
    def queued_bytes(self) -> int:
        """Bytes of the columns that wait to be handed out."""
        return self._queue.num_bytes

    @property
    def waiting_seconds(self) -> float:
        """How long there has been no broker or no topic; 0 while reading."""
        since = self.waiting_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def caught_up_ms(self) -> int | None:
        """The wall time at which everything then readable has been handed out; None before the first."""
        with self._marks:
            return self._handed_up.complete_until_ms(self._stands(self._handed))

    def complete_until_ms(self, learned: Mapping[Partition, Position]) -> int | None:
        """The wall time at which everything then readable lies before these positions; None before the first."""
        with self._marks:
            return self._caught_up.complete_until_ms(self._stands(learned))

    def end_offsets(self) -> dict[Partition, int]:
        """Where the partitions end as last told; {} before the first answer."""
        return dict(self._session.ends)

    @property
    def catching_up(self) -> bool:
        """Whether records are known that have not been handed out."""
        with self._marks:
            return any(
                end > (self._handed[partition].offset if partition in self._handed else 0)
                for partition, end in self._session.ends.items()
            )

    @property
    def topic_ids(self) -> dict[Partition, str]:
        """The topic's id as last seen, by partition."""
        return {partition: position.topic_id for partition, position in self._session.positions.items()}

    @property
    def idle_partitions(self) -> set[Partition]:
        """Partitions read to their end that have had nothing new for a while (see WatermarkClock)."""
        return self._session.idle(IDLE_SECONDS)

    def stop_at(self, end_offsets: Mapping[Partition, int]) -> None:
        """Hand out nothing at or after these offsets, and be finished there."""
        self._session.stop_at = dict(end_offsets)

    def stop_at_end(self) -> None:
        """Stop where the partitions end when next asked; call it before start() for the ends at the start."""
        self._session.stop_requested_at = time.monotonic()

    @property
    def stop_offsets(self) -> dict[Partition, int] | None:
        """Where reading stops (see stop_at); None where it does not, or the ends are not known yet."""
        return None if self._session.stop_at is None else dict(self._session.stop_at)

    def reset_emitted_strings(self) -> None:
        """The texts of ids count as untold: somebody has let go of some. Of what is decoded from now on."""
        self._tell_again.set()

    def report_offsets(self, positions: Mapping[Partition, int]) -> None:
        """Let monitoring tools see these positions in the consumer group; soon, and only if that is possible."""
        self._session.offsets_to_report = dict(positions)

    def close(self) -> None:
        """Stop reading; what is queued is dropped."""
        self._closing.set()
        self._queue.end()
        if self._thread is not None:
            self._thread.join(10.0)
        self.state = "closed"

    @property
    def closing(self) -> bool:
        """Whether close() was called."""
        return self._closing.is_set()

    # what follows is called by the reading thread

    def deliver(self, columns: Columns) -> None:
        """Queue columns; waits while the queue holds its limit of bytes."""
        self._queue.put(columns)

    def decode(self, raw: RawRecords, topic_id: str) -> Columns:
        """The records as columns that name their topic's id."""
        is_owed = self._hidden is not None and self._hidden.needs_string_replay(raw.partition, raw.end)
        if is_owed or self._tell_again.is_set():
            self._tell_again.clear()
            self._decoder.seen_strings.clear()
        columns = self._decoder.decode(raw, wall_ms())
        if self._hidden is not None:
            columns = self._hidden.apply(columns, raw.partition, topic_id)
        return replace(columns, topic_ids={raw.partition: topic_id})

    def mark(self, wall_ms: int, ends: Mapping[Partition, Position]) -> None:
        """The partitions ended there at that time."""
        with self._marks:
            self._caught_up.observe_ends(wall_ms, ends)
            self._handed_up.observe_ends(wall_ms, ends)

    def topic_was_reset(self, why: str) -> None:
        """Offsets begin anew."""
        self.num_resets += 1
        logger.warning("topic reset: %s", why, extra={"topic": self.config.topic, "resets": self.num_resets})

    def is_reading(self) -> None:
        """Connected."""
        if self.state != "reading":
            logger.info("reading", extra={"topic": self.config.topic})
        self.state, self.reason, self.waiting_since = "reading", "", None

    def _stands(self, positions: Mapping[Partition, Position]) -> dict[Partition, Position]:
        """Positions in the topic as it is now: where reading began until something of it has come."""
        stands = dict(self._session.start_positions)
        for partition, began in stands.items():
            position = positions.get(partition, began)
            if position.topic_id == began.topic_id:
                stands[partition] = position
        return stands

    def _run(self) -> None:
        """Sessions, one after another, until closed or finished; what waiting cannot mend is left to poll()."""
        pause = FIRST_PAUSE_SECONDS
        corrupt, corrupt_at = 0, dict(self._session.positions)
        while not self.closing:
            try:
                self._session.run()
            except TopicChangedError:
                continue
            except RetriableError as error:
                if self.state == "reading":
                    pause = FIRST_PAUSE_SECONDS
                self._wait(error, pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            except CorruptBatchError as error:
                # fetching the same again tells the disk's faults from the network's
                corrupt = corrupt + 1 if corrupt_at == self._session.positions else 1
                corrupt_at = dict(self._session.positions)
                if corrupt >= CORRUPT_TRIES:
                    self._fail(error)
                    return
            except BaseException as error:
                self._fail(error)
                return
            else:
                break
        self.state = "closed" if self.closing else "finished"
        self._queue.end()

    def _wait(self, error: RetriableError, seconds: float) -> None:
        if self.state != "waiting" or self.reason != str(error):
            logger.warning("waiting: %s", error, extra={"topic": self.config.topic})
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()
        self.state, self.reason = "waiting", str(error)
        self._closing.wait(seconds)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, StreamError):
            logger.exception("the source's thread ended", exc_info=error)
        self.state, self.reason = "failed", str(error)
        self._queue.end(error)
