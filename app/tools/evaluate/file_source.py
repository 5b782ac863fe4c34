"""A stream that comes from files: rows become the messages that a replay would send, and are decoded like them."""

# N samples
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from springtide.app.tools.evaluate.scores import SegmentField
from springtide.app.training.batches import FeatureValues
from springtide.stream.columns import Columns, RawRecords
from springtide.stream.config import SourceConfig
from springtide.stream.consumer_loop import SourceStatus
from springtide.stream.decode.decoder import Decoder
from springtide.stream.history.input_file import FileRow, InputFile
from springtide.stream.negatives import NegativeSampling
from springtide.stream.positions import Partition
from springtide.stream.source import Source
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

POLL_ROWS = 4096
PLENTY = 1 << 40  # rows that wait in a file that is not read to its end


class FileSource(Source):
    """The rows of files, one file after another, as the records of a topic with one partition. It has no thread."""

    def __init__(
        self,
        config: SourceConfig,
        schema: Schema,
        files: Sequence[InputFile],
        *,
        limit: int | None = None,
        by: str | None = None,
        negatives: NegativeSampling | None = None,
    ) -> None:
        """`limit`: rows to read at most. `by`: the field whose values divide the samples into segments.

        `negatives`: which of them the reader drops.
        """
        self._negatives = negatives
        self.status = SourceStatus(config.topic, is_connected=True)
        self.partition = Partition(config.topic, 0)
        self.num_rows = 0  # read
        self.fraction = 0.0  # of the files that is read
        self.segments = None if by is None else SegmentField(by)
        self._decoder = Decoder(schema, config.with_json())
        self._limit = limit
        self._sizes = [max(file.path.stat().st_size, 1) for file in files]
        self._num_before = 0  # bytes of the files before the one that is read
        self._size = 0  # of that one
        self._rows = itertools.islice(self._read(files), limit)
        self._at_end = False
        self._offsets: list[npt.NDArray[np.int64]] = []
        self._values = FeatureValues(schema, config)

    def poll(self, timeout_seconds: float) -> list[Columns]:
        """Decode the next rows; [] at the end. UserError names a line that cannot be read."""
        del timeout_seconds
        rows = list(itertools.islice(self._rows, POLL_ROWS))
        if not rows:
            self._at_end = True
            return []
        self.fraction = (self._num_before + rows[-1].fraction * self._size) / sum(self._sizes)
        first, self.num_rows = self.num_rows, self.num_rows + len(rows)
        if self._limit:
            self.fraction = max(self.fraction, self.num_rows / self._limit)
        raw = RawRecords.from_messages(
            self.partition,
            [row.value for row in rows],
            record_ms=[now_ms := wall_ms()] * len(rows),
            offsets=range(first, self.num_rows),
        )
        columns = self._decoder.decode(raw, now_ms)
        offset_N = columns.offset_N if self._negatives is None else self._negatives.drop(columns).offset_N
        self._offsets.append(offset_N)
        self._values.add(columns)
        if self.segments is not None:
            self.segments.add([rows[n].value for n in (offset_N - first).tolist()])
        return [columns]

    def fields_without_values(self) -> list[str]:
        """Return the features of [schema] for which no row that can be learned has had a value: often misspelt."""
        return self._values.without

    @property
    def finished(self) -> bool:
        """True once every row was returned by poll()."""
        return self._at_end

    @property
    def num_waiting(self) -> int:
        """Rows that poll() has not returned: how many is not known before the end."""
        return 0 if self._at_end else PLENTY

    def sample_rows(self) -> npt.NDArray[np.int64]:
        """Return which row of the files, counted from 0, each sample was, in the order of learning."""
        return np.concatenate(self._offsets) if self._offsets else np.zeros(0, np.int64)

    def _read(self, files: Sequence[InputFile]) -> Iterator[FileRow]:
        for file, size in zip(files, self._sizes, strict=True):
            self._num_before, self._size = self._num_before + self._size, size
            yield from file.rows()
