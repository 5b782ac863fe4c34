"""From the stream to batches: a source and a batcher, from given positions on. Knows no table and no log."""

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
    """Returns batches in the order to learn them; the next one can be peeked at."""

    def __init__(
        self,
        config: TrainerConfig,
        positions: Mapping[Partition, Position],
        *,
        until_end: bool,
        samples_trained: int = 0,
        erasures: Sequence[Erasure] = (),
        source: Source | None = None,
    ) -> None:
        """`samples_trained`: before these positions; batches grow with it. `source`: instead of the topic.

        `erasures`: erased ids to filter out of records from before their erasure.
        """
        self.until_end, self.batch_size = until_end, config.train.batch_size
        self.erasures = list(erasures)
        group = config.source.group or f"springtide-{config.name}"
        self.source = source or Source(replace(config.source, group=group), config.schema, positions, erasures=erasures)
        self.batcher = Batcher(
            config.train.batch_size,
            config.train.max_wait_seconds,
            min_batch_size=config.train.min_batch_size,
            growth=config.train.growth(has_wide_part=config.model.has_wide_part),
            num_learned=samples_trained,
        )
        self._earlier_ends: dict[Partition, int] = {}  # end offsets that an earlier stream knew
        self._peeked: Batch | None = None  # taken from the batcher, not returned yet
        self._is_stream_slow = False  # True if batches become due before they are full

    def start(self, after: "BatchStream | None" = None) -> None:
        """Begin to read. A stream that continues an earlier one stops at the same end."""
        stop_offsets = None if after is None else after.source.stop_offsets
        if after is not None:
            self.source.status.num_resets, self._earlier_ends = after.source.num_resets, after.end_offsets()
        if stop_offsets is not None:
            self.source.stop_at(stop_offsets)
        elif self.until_end:
            self.source.stop_at_end()
        self.source.start()

    def end_offsets(self) -> dict[Partition, int]:
        """Return the newest known end offset of each partition."""
        return self.source.end_offsets() or self._earlier_ends

    def idle_partitions(self, learned: Mapping[Partition, Position], clock: WatermarkClock) -> set[Partition]:
        """Return partitions that were learned to their end and silent for a while, and those that the topic lost."""
        ends = self.end_offsets()
        silent = {p for p in self.source.idle_partitions if p in learned and learned[p].offset >= ends.get(p, 0)}
        return silent | (clock.watermarks.keys() - ends.keys() if ends else set())

    @property
    def finished(self) -> bool:
        """True if everything up to the requested end was returned; RetriableError without a broker for too long."""
        if self.until_end and self.source.waiting_seconds > MAX_UNAVAILABLE_SECONDS:
            raise RetriableError(f"waited {MAX_UNAVAILABLE_SECONDS:.0f} s: {self.source.reason}")
        return self.until_end and self.source.finished and self.batcher.is_empty and self._peeked is None

    @property
    def is_behind(self) -> bool:
        """True if `batch_size` samples wait, here or in the broker."""
        peeked = 0 if self._peeked is None else len(self._peeked)
        return peeked + self.batcher.num_rows + self.source.num_waiting >= self.batch_size

    def poll(self, max_seconds: float) -> None:
        """Take what the stream has, unless a full batch waits already. Waits at most this long, or until one is due."""
        self.batcher.is_behind = self.is_behind
        if self.batcher.num_rows < self.batcher.full_rows:
            for columns in self.source.poll(self._poll_seconds(max_seconds)):
                self.batcher.add(columns)

    def take(self, *, allow_partial: bool = False) -> Batch | None:
        """Return a batch that is due; at the end of the stream, what is left.

        `allow_partial`: a version is due, and would miss samples that wait for a full batch. Those are returned only if
        the stream is slow; where batches fill by themselves, a partial one would cost more than it gains.
        """
        batch, self._peeked = self._peeked, None
        full_rows = self.batcher.full_rows if batch is None else len(batch)
        if batch is None:
            self.batcher.is_behind = self.is_behind
            batch = self.batcher.take()
        if batch is None and ((allow_partial and self._is_stream_slow) or (self.until_end and self.source.finished)):
            batch = self.batcher.flush()
        if batch is not None and len(batch) and self.batcher.max_wait_seconds < float("inf"):
            self._is_stream_slow = len(batch) < full_rows
        return batch

    def peek(self) -> Batch | None:
        """Return the batch that `take` returns next, if it is full already."""
        if self._peeked is None and self.batcher.num_rows >= self.batcher.full_rows:
            self._peeked = self.batcher.take()
        return self._peeked

    def close(self) -> None:
        """Stop reading; what was not taken is dropped."""
        self.source.close()

    def _poll_seconds(self, max_seconds: float) -> float:
        if self._peeked is not None:
            return 0.0
        until_due = self.batcher.seconds_until_due()
        return max(0.0, min(POLL_SECONDS, max_seconds, float("inf") if until_due is None else until_due))
