"""From the stream to the next batch: source and batcher from given positions on. Knows no table and no log."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from app.training.config import TrainerConfig
from stream.batcher import Batcher
from stream.columns import Batch
from stream.decode.erasure_filter import Erasure
from stream.errors import RetriableError
from stream.flow.watermark import WatermarkClock
from stream.positions import Partition, Position
from stream.source import Source

MAX_UNAVAILABLE_SECONDS = 60.0  # how long --until-end waits for a broker and a topic
POLL_SECONDS = 0.05


class BatchStream:
    """Hands out batches in the order to learn them, and looks one ahead."""

    def __init__(
        self,
        config: TrainerConfig,
        positions: Mapping[Partition, Position],
        *,
        until_end: bool,
        erasures: Sequence[Erasure] = (),
    ) -> None:
        self.until_end, self.batch_size = until_end, config.train.batch_size
        self.erasures = list(erasures)
        group = config.source.group or f"springtide-{config.name}"
        self.source = Source(replace(config.source, group=group), config.schema, positions, erasures=erasures)
        self.batcher = Batcher(
            config.train.batch_size, config.train.max_wait_seconds, min_batch_size=config.train.min_batch_size or None
        )
        self._ends: dict[Partition, int] = {}  # as the intake before knew them
        self.upcoming: Batch | None = None  # taken from the batcher, not learned yet
        self._batches_time_out = False  # whether batches are due before they are full

    def start(self, after: "BatchStream | None" = None) -> None:
        """Begin to read. An end that the intake before was given is kept."""
        ends = None if after is None else after.source.stop_offsets
        if after is not None:
            self.source.status.num_resets, self._ends = after.source.num_resets, after.end_offsets()
        if ends is not None:
            self.source.stop_at(ends)
        elif self.until_end:
            self.source.stop_at_end()
        self.source.start()

    def end_offsets(self) -> dict[Partition, int]:
        """Where the partitions end as last told."""
        return self.source.end_offsets() or self._ends

    def idle_partitions(self, learned: Mapping[Partition, Position], clock: WatermarkClock) -> set[Partition]:
        """Partitions learned to their end that have been silent for a while, and those that the topic lost."""
        ends = self.end_offsets()
        silent = {p for p in self.source.idle_partitions if p in learned and learned[p].offset >= ends.get(p, 0)}
        return silent | (clock.watermarks.keys() - ends.keys() if ends else set())

    @property
    def finished(self) -> bool:
        """Whether the end that was asked for is handed out; RetriableError where it cannot be reached for too long."""
        if self.until_end and self.source.waiting_seconds > MAX_UNAVAILABLE_SECONDS:
            raise RetriableError(f"waited {MAX_UNAVAILABLE_SECONDS:.0f} s: {self.source.reason}")
        return self.until_end and self.source.finished and self.batcher.is_empty and self.upcoming is None

    def poll(self, patience_seconds: float) -> None:
        """Take what the stream has, unless a whole batch waits already; wait so long at most."""
        if self.batcher.num_rows < self.batch_size:
            for columns in self.source.poll(self.patience(patience_seconds)):
                self.batcher.add(columns)

    def patience(self, seconds: float) -> float:
        """How long the stream may let us wait: until a batch is due, and not longer than so long."""
        if self.upcoming is not None:
            return 0.0
        until_batch = self.batcher.seconds_until_due()
        waits = [POLL_SECONDS, seconds, *([until_batch] if until_batch is not None else [])]
        return max(0.0, min(waits))

    def take(self, *, allow_partial: bool = False) -> Batch | None:
        """A batch that is due; at the end of the stream, what is left.

        `in_haste`: a version is due, which what waits for more would miss. Where batches fill, that is worth no part of
        one; where they are due because `max_wait_seconds` passed, it is.
        """
        batch, self.upcoming = self.upcoming, None
        if batch is None:
            batch = self.batcher.take()
        if batch is None and ((allow_partial and self._batches_time_out) or (self.until_end and self.source.finished)):
            batch = self.batcher.flush()
        if batch is not None and len(batch) and self.batcher.max_wait_seconds < float("inf"):
            self._batches_time_out = len(batch) < self.batch_size
        return batch

    def peek(self) -> Batch | None:
        """The batch that will be taken next, where it is full already."""
        if self.upcoming is None and self.batcher.num_rows >= self.batch_size:
            self.upcoming = self.batcher.take()
        return self.upcoming

    def close(self) -> None:
        """Read no further; what was not taken is dropped."""
        self.source.close()
