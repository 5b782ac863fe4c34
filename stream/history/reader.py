"""A history's rows as columns, from a position on: file after file, up to the seam. Knows no Kafka.

The files are one partition, `HISTORY`. The number of a row, counted over all files, is its offset. A position there
names the file that the row is in, so that a restart opens that file, and none of those before it.
"""

# N records, then samples
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Columns, RawRecords
from springtide.stream.decode.decoder import DecodePipeline
from springtide.stream.errors import HistoryError
from springtide.stream.history.files import HistoryFile
from springtide.stream.history.input_file import InputFile
from springtide.stream.history.place import HistoryPlace
from springtide.stream.history.seam_filter import SeamFilter
from springtide.stream.history.table_rows import TableRows
from springtide.stream.positions import HISTORY, Position
from springtide_client.features import IdStrings

logger = logging.getLogger(__name__)

LATE_MS = 60_000  # a row that is so much older than one before it is worth a warning


class HistoryReader:
    """Iterates over the columns once, in one thread; `progress` and the counts may be read by others."""

    def __init__(
        self,
        files: Sequence[HistoryFile],
        pipeline: DecodePipeline,
        position: Position,
        *,
        seam: SeamFilter,
        sort_rows: int = 0,
        keeps_records: bool = False,
    ) -> None:
        """`files`: all, in their order. `position`: of the next row.

        `sort_rows`: how many rows of a file are sorted by event time at once; offsets then count the sorted rows.
        `keeps_records`: with the columns come the records that they are of, `Columns.raw`. HistoryError if the
        position's file is gone or has changed.
        """
        self.place, self.offset = HistoryPlace.parse(position.topic_id), position.offset
        self.progress = ""
        self.num_late = self.late_ms = 0  # samples older than one before them, and by how much at most
        self.seam, self.sort_rows, self.keeps_records = seam, sort_rows, keeps_records
        self.num_files = len(files)
        self._pipeline = pipeline
        self._newest_ms = 0
        self._files = self._from_place(files)

    def __iter__(self) -> Iterator[Columns]:
        for number, file in enumerate(self._files):
            if number > 0:
                self.place = self.place._replace(
                    number=self.place.number + 1,
                    first_row=self.offset,
                    fingerprint=file.fingerprint(),
                    name=file.name,
                )
            ahead = len(self._files) - number
            self.progress = f"learning history: {file.name}, file {self.num_files - ahead + 1} of {self.num_files}"
            try:
                yield from self._columns_of(file)
            except OSError as error:
                raise HistoryError(f"[history] {file.name} cannot be read: {error}") from None
            if file.fingerprint() != self.place.fingerprint:
                raise HistoryError(f"[history] {file.name} has changed while it was read: a file of a history is final")
        self.place = HistoryPlace(self.place.until_ms, self.place.history, is_finished=True)
        self.progress = ""
        yield self._pipeline.decode(raw_rows([], self.offset), self.place.topic_id())

    def _from_place(self, files: Sequence[HistoryFile]) -> list[HistoryFile]:
        """Return the file of the position and those after it."""
        name = self.place.name
        at = next((n for n, file in enumerate(files) if file.name == name), None)
        if at is None:
            raise HistoryError(f"[history] {name}, which the log has learned in part, is gone: bring it back")
        if files[at].fingerprint() != self.place.fingerprint:
            raise HistoryError(
                f"[history] {name} has changed since the log has learned a part of it: bring the old file back, "
                "or set another [log] path to learn everything anew"
            )
        if at > self.place.number:
            logger.warning(
                "files are new that come before the one that is learned: they are not learned",
                extra={"files": at - self.place.number, "before": name},
            )
        return list(files[at:])

    def _columns_of(self, file: HistoryFile) -> Iterator[Columns]:
        """Yield the columns of a file from the offset on."""
        skip = self.offset - self.place.first_row
        # a window that is learned in part is sorted as a whole again
        read_from = skip - skip % self.sort_rows if self.sort_rows else skip
        for raw in self._records(file.open(), read_from):
            row = raw.end
            columns = self._decode(raw)
            self._note_disorder(columns)
            self.offset = row
            yield self.seam.before(columns)

    def _records(self, file: InputFile, skip: int) -> Iterator[RawRecords]:
        """Yield the records of a file from its row `skip` on."""
        row = self.place.first_row + skip
        if file.format == "parquet" and not self.sort_rows:
            for table in file.tables(skip):
                yield TableRows.of(table, row)
                row += table.num_rows
            return
        for messages in in_windows(file.messages(skip), self.sort_rows):
            yield raw_rows(messages, row)
            row += len(messages)

    def _decode(self, raw: RawRecords) -> Columns:
        """Decode the rows from the offset on, sorted if they are to be."""
        topic_id, offset = self.place.topic_id(), self.offset
        columns = self._pipeline.decode(raw if self.sort_rows else raw.from_offset(offset), topic_id)
        if not self.sort_rows:
            return replace(columns, raw=raw) if self.keeps_records else columns
        id_strings = columns.id_strings
        order_N = time_order(columns, raw)
        if np.any(np.diff(order_N) < 0):
            raw = replace(raw, value_start_N=raw.value_start_N[order_N], value_length_N=raw.value_length_N[order_N])
            columns = self._pipeline.decode(raw, topic_id)
        if offset > raw.offset_N[0]:
            columns = self._pipeline.decode(raw.from_offset(offset), topic_id)
        id_strings = IdStrings.concatenate([id_strings, columns.id_strings])
        return replace(columns, id_strings=id_strings, raw=raw if self.keeps_records else None)

    def _note_disorder(self, columns: Columns) -> None:
        if not len(columns):
            return
        newest_N = np.maximum.accumulate(np.maximum(columns.event_ms_N, self._newest_ms))
        late_N = newest_N - columns.event_ms_N
        self._newest_ms = int(newest_N[-1])
        self.num_late += int(np.count_nonzero(late_N))
        if int(late_N.max()) > max(self.late_ms, LATE_MS) and self.late_ms <= LATE_MS:
            logger.warning(
                "a history's rows are not in time order: sort the files, or set [history] order or sort_rows",
                extra={"file": self.place.name, "late_seconds": int(late_N.max()) // 1000},
            )
        self.late_ms = max(self.late_ms, int(late_N.max()))


def raw_rows(messages: Sequence[bytes], first: int) -> RawRecords:
    """Return rows as records; the first one has the offset `first`. A row has no time but its event time."""
    end = first + len(messages)
    return RawRecords.from_messages(HISTORY, messages, offsets=range(first, end), end=end)


def in_windows(blocks: Iterator[list[bytes]], size: int) -> Iterator[list[bytes]]:
    """Yield the same messages `size` at a time; as they come where `size` is 0."""
    if not size:
        yield from blocks
        return
    waiting: list[bytes] = []
    for block in blocks:
        waiting += block
        while len(waiting) >= size:
            yield waiting[:size]
            del waiting[:size]
    if waiting:
        yield waiting


def time_order(columns: Columns, raw: RawRecords) -> npt.NDArray[np.int64]:
    """Return the order of the records by event time, int64 (N); one that is no sample goes with the one before it."""
    event_ms_N = np.zeros(len(raw), np.int64)
    samples = np.searchsorted(raw.offset_N, columns.offset_N)
    event_ms_N[samples] = columns.event_ms_N
    newest = np.zeros(len(raw), np.int64)
    newest[samples] = samples
    event_ms_N = event_ms_N[np.maximum.accumulate(newest)]
    return np.argsort(event_ms_N, kind="stable").astype(np.int64)
