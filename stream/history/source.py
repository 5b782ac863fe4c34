"""A history, then the topic: one source that reads files at full speed, and goes on in Kafka at the seam."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from springtide.stream.column_queue import ColumnQueue
from springtide.stream.columns import Columns
from springtide.stream.config import SourceConfig
from springtide.stream.consumer_loop import SourceStatus
from springtide.stream.decode.decoder import DecodePipeline, Decoder
from springtide.stream.decode.erasure_filter import Erasure, ErasureFilter
from springtide.stream.errors import HistoryError, RetriableError, StreamError
from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.files import HistoryFile
from springtide.stream.history.place import HistoryPlace
from springtide.stream.history.reader import HistoryReader, raw_rows
from springtide.stream.history.seam import Seam, decide_seam
from springtide.stream.history.seam_filter import SeamFilter
from springtide.stream.history.table_rows import open_decoder
from springtide.stream.history.times import ordered_files
from springtide.stream.kafka.range_reader import read_range
from springtide.stream.positions import ALL_PARTITIONS, HISTORY, Partition, PartitionShare, Position
from springtide.stream.source import MAX_BACKOFF_SECONDS, MAX_POLL_BYTES, MIN_BACKOFF_SECONDS, KafkaSource, Source
from springtide_client.schema import Schema
from springtide_client.system.clock import Backoff, wall_ms

logger = logging.getLogger(__name__)

PLENTY = 1 << 40  # rows that wait in files that are not read to their end


def open_source(
    config: SourceConfig,
    history: HistoryConfig,
    schema: Schema,
    positions: Mapping[Partition, Position],
    *,
    erasures: Sequence[Erasure] = (),
    share: PartitionShare = ALL_PARTITIONS,
) -> Source:
    """Return what a trainer reads from these positions on: the topic, after a history if there is one.

    HistoryError where the positions and the configuration contradict each other.
    """
    at = positions.get(HISTORY)
    if history.path is None:
        if at is not None and not at.is_finished:
            raise HistoryError(
                "the log is in the middle of its history: put [history] back; to give up the rest of it, set another "
                "[log] path"
            )
        return KafkaSource(config, schema, positions, erasures=erasures, share=share)
    if at is None and positions:
        raise HistoryError(
            "[history] comes before the topic, and this log begins in it: leave out [history] (or --from-offset, which "
            "[history] offsets replaces), or set another [log] path"
        )
    if share.num_ranks > 1 and (at is None or not at.is_finished):
        raise HistoryError(
            "[history] is learned by one process: run `springtide train` without --ranks until the topic is reached"
        )
    return HistoryThenLive(config, history, schema, positions, erasures=erasures, share=share)


def read_again(
    config: SourceConfig,
    history: HistoryConfig,
    schema: Schema,
    begin: Mapping[Partition, Position],
    end: Mapping[Partition, Position],
) -> Iterator[Columns]:
    """Yield the samples between two sets of positions, in files and topic, with their records (`Columns.raw`).

    Records that are gone are left out, and files that the configuration no longer names. Raises StreamError.
    """
    until_ms, stop = None, end.get(HISTORY)
    if stop is not None:
        until_ms = HistoryPlace.parse(stop.topic_id).until_ms
        first = begin.get(HISTORY)
        if history.path is not None and (first is None or first.offset < stop.offset):
            files = ordered_files(history, schema)
            first = first or Position(HistoryPlace.first(files[0], until_ms).topic_id(), 0)
            pipeline, seam = DecodePipeline(open_decoder(schema, config)), SeamFilter(schema, config, until_ms)
            reader = HistoryReader(files, pipeline, first, seam=seam, sort_rows=history.sort_rows, keeps_records=True)
            for columns in reader:
                yield columns.slice(0, int(np.searchsorted(columns.offset_N, stop.offset)))
                if reader.offset >= stop.offset:
                    break
    decoder, seam = Decoder(schema, config), SeamFilter(schema, config, until_ms)
    for raw in read_range(config.kafka_config(), begin, end):
        yield seam.after(replace(decoder.decode(raw, wall_ms()), raw=raw))


class HistoryThenLive(Source):
    """Reads the files in a thread, up to the seam; then it is a KafkaSource, from the seam on.

    poll() raises the StreamError that ended the reading, after everything read before it has been returned.
    """

    def __init__(
        self,
        config: SourceConfig,
        history: HistoryConfig,
        schema: Schema,
        positions: Mapping[Partition, Position],
        *,
        erasures: Sequence[Erasure] = (),
        share: PartitionShare = ALL_PARTITIONS,
    ) -> None:
        """`positions`: those of files and topic; without one in the files the seam is decided first."""
        self._config, self._history, self._schema = config, history, schema
        self._positions, self._erasures, self._share = dict(positions), erasures, share
        self._status = SourceStatus(config.topic)
        self._rows = config.with_json()  # rows of files become messages of JSON
        erasure_filter = ErasureFilter(schema, erasures) if erasures else None
        self._pipeline = DecodePipeline(open_decoder(schema, self._rows), erasure_filter)
        self._queue = ColumnQueue(config.queue_bytes)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_read = False  # the history, to its end
        self._live: KafkaSource | None = None
        self._live_filter: SeamFilter | None = None
        self._stop_offsets: dict[Partition, int] | None = None
        self._stops_at_end = False

    @property
    def status(self) -> SourceStatus:  # type: ignore[override]
        """The state of what is read now."""
        return self._status if self._live is None else self._live.status

    def start(self) -> None:
        if self._thread is not None or self._live is not None or self._closing.is_set():
            return
        at = self._positions.get(HISTORY)
        if at is not None and at.is_finished:
            self._go_live()
            return
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def poll(self, timeout_seconds: float) -> list[Columns]:
        self.start()
        if self._live is None:
            is_read = self._is_read  # before the queue is looked at: nothing is queued afterwards
            taken = self._queue.take(MAX_POLL_BYTES, 0.0 if is_read else timeout_seconds)
            if taken or not is_read or self._closing.is_set():
                return taken
            self._go_live()
        assert self._live is not None
        assert self._live_filter is not None
        return [self._live_filter.after(columns) for columns in self._live.poll(timeout_seconds)]

    def close(self) -> None:
        self._closing.set()
        self._queue.end()
        if self._thread is not None:
            self._thread.join(10.0)
        if self._live is not None:
            self._live.close()
        self._status.set_ended("closed")

    @property
    def finished(self) -> bool:
        return self._live is not None and self._live.finished

    @property
    def num_waiting(self) -> int:
        return PLENTY if self._live is None else self._live.num_waiting

    @property
    def idle_partitions(self) -> set[Partition]:
        return set() if self._live is None else self._live.idle_partitions

    @property
    def has_partitions(self) -> bool:
        return self._live is None or self._live.has_partitions

    def end_offsets(self) -> dict[Partition, int]:
        """Where the topic's partitions ended; {} while files are read: they may hold everything so far."""
        return {} if self._live is None else self._live.end_offsets()

    def complete_until_ms(self, learned: Mapping[Partition, Position]) -> int | None:
        return None if self._live is None else self._live.complete_until_ms(learned)

    def stop_at(self, end_offsets: Mapping[Partition, int]) -> None:
        self._stop_offsets = dict(end_offsets)
        if self._live is not None:
            self._live.stop_at(end_offsets)

    def stop_at_end(self) -> None:
        self._stops_at_end = True
        if self._live is not None:
            self._live.stop_at_end()

    @property
    def stop_offsets(self) -> dict[Partition, int] | None:
        return self._stop_offsets if self._live is None else self._live.stop_offsets

    def reset_emitted_strings(self) -> None:
        self._pipeline.reset_emitted_strings()
        if self._live is not None:
            self._live.reset_emitted_strings()

    def report_offsets(self, offsets: Mapping[Partition, int]) -> None:
        if self._live is not None:
            self._live.report_offsets(offsets)

    def _go_live(self) -> None:
        """Read the topic from the seam on."""
        until_ms = HistoryPlace.parse(self._positions[HISTORY].topic_id).until_ms
        live = KafkaSource(self._config, self._schema, self._positions, erasures=self._erasures, share=self._share)
        live.status.num_resets = self._status.num_resets
        if self._stop_offsets is not None:
            live.stop_at(self._stop_offsets)
        elif self._stops_at_end:
            live.stop_at_end()
        self._live_filter, self._live = SeamFilter(self._schema, self._config, until_ms), live
        live.start()

    def _run(self) -> None:
        """1. Decide the seam, unless a version holds it. 2. Queue the files' columns."""
        try:
            files = ordered_files(self._history, self._schema)
            at = self._positions.get(HISTORY)
            if at is None:
                at = self._begin(files)
            if at is not None:
                self._read(files, at)
        except BaseException as error:
            self._fail(error)

    def _begin(self, files: Sequence[HistoryFile]) -> Position | None:
        """Decide the seam, and queue it, so that the first version holds it; None if closed while waiting."""
        seam = self._wait_for_seam(files)
        if seam is None:
            return None
        at = Position(HistoryPlace.first(files[0], seam.until_ms).topic_id(), 0)
        self._positions |= {**seam.positions, HISTORY: at}
        begins = self._positions
        columns = self._pipeline.decode(raw_rows([], 0), at.topic_id)
        self._queue.put(
            replace(
                columns,
                partitions=tuple(begins),
                end_offsets={partition: position.offset for partition, position in begins.items()},
                topic_ids={partition: position.topic_id for partition, position in begins.items()},
            )
        )
        logger.info(
            "the history's seam is decided",
            extra={"until_ms": seam.until_ms, "files": len(files)}
            | {str(partition): position.offset for partition, position in seam.positions.items()},
        )
        return at

    def _wait_for_seam(self, files: Sequence[HistoryFile]) -> Seam | None:
        backoff = Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while not self._closing.is_set():
            try:
                return decide_seam(self._config, self._history, self._schema, files)
            except RetriableError as error:
                self._status.set_waiting(str(error))
                self._closing.wait(backoff.fail())
        return None

    def _read(self, files: Sequence[HistoryFile], at: Position) -> None:
        seam = SeamFilter(self._schema, self._rows, HistoryPlace.parse(at.topic_id).until_ms)
        if self._history.until_ms not in (None, seam.until_ms):
            logger.warning(
                "[history] until is not what the log has begun with: it stays as it was",
                extra={"until_ms": seam.until_ms},
            )
        reader = HistoryReader(files, self._pipeline, at, seam=seam, sort_rows=self._history.sort_rows)
        self._status.set_reading()
        for columns in reader:
            self._status.progress = reader.progress
            self._queue.put(columns)
            if self._closing.is_set():
                return
        logger.info(
            "the history is read: the topic follows",
            extra={"rows": reader.offset, "left_to_topic": seam.num_left_out, "out_of_order": reader.num_late},
        )
        self._positions[HISTORY] = Position(reader.place.topic_id(), reader.offset)
        self._is_read = True
        self._queue.end()

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, StreamError):
            logger.exception("the history's thread failed", exc_info=error)
        self._status.set_ended("failed", str(error))
        self._queue.end(error)
