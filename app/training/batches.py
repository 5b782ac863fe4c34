"""From the stream to batches: a source and a batcher, from given positions on. Knows no table and no log."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from springtide.app.training.config import TrainerConfig, disk_folder, wait_seconds_of
from springtide.stream.batcher import Batcher
from springtide.stream.columns import Batch, Columns
from springtide.stream.config import SourceConfig
from springtide.stream.decode.erasure_filter import Erasure
from springtide.stream.errors import RetriableError
from springtide.stream.history.source import open_source
from springtide.stream.join.source import JoinSource
from springtide.stream.join_state import JoinState
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare, Position
from springtide.stream.source import Source
from springtide.stream.watermark import WatermarkClock
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

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
        share: PartitionShare = ALL_PARTITIONS,
        join: JoinState | None = None,
    ) -> None:
        """`samples_trained`: before these positions; batches grow with it. `source`: instead of the topic.

        `erasures`: erased ids to filter out of records from before their erasure. `share`: the partitions to read.
        `join`: where the join of labels goes on, if there is one: this rank's part.
        """
        self.until_end, self.batch_size, self.share = until_end, config.train.batch_size, share
        self.erasures = list(erasures)
        group = config.source.group or f"springtide-{config.name}"
        source_config = replace(config.source, group=group)
        if source is None and config.join is not None:
            source = JoinSource(
                source_config,
                config.join,
                config.schema.recorded,
                join,
                erasures=erasures,
                share=share,
                scratch=disk_folder(config),
            )
        self.source = source or open_source(
            source_config, config.history, config.schema.recorded, positions, erasures=erasures, share=share
        )
        self._negatives = config.negatives
        # until the end of the stream every batch is full: nothing has to be fresh, and every run has the same batches
        self.batcher = Batcher(
            config.train.batch_size,
            float("inf") if until_end else wait_seconds_of(config),
            min_batch_size=config.train.min_batch_size,
            growth=config.train.batch_growth,
            num_learned=samples_trained // share.num_ranks,  # all ranks together learn a batch of each
            by_request=config.train.by_request,
        )
        # batches of many ranks must not depend on time, and each rank has a full one or nothing left
        self.is_fixed = until_end and share.num_ranks > 1
        self._earlier_ends: dict[Partition, int] = {}  # end offsets that an earlier stream knew
        self.ready: Batch | None = None  # prepared, and not taken yet
        self._peeked: Batch | None = None  # the full one after it

    def start(self, after: "BatchStream | None" = None) -> None:
        """Begin to read. A stream that continues an earlier one stops at the same end."""
        stop_offsets = None if after is None else after.source.stop_offsets
        if after is not None:
            self.source.status.num_resets = after.source.status.num_resets
            self.source.status.num_deleted_unread = after.source.status.num_deleted_unread
            self._earlier_ends = after.end_offsets()
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
        is_all_learned = self.batcher.is_empty and self._peeked is None and self.ready is None
        # of a join all may be learned, and the windows after that be read again
        at = self.source.positions_read(learned) if is_all_learned else learned
        silent = {p for p in self.source.idle_partitions if p in at and at[p].offset >= ends.get(p, 0)}
        return silent | ({p for p in clock.watermarks if self.share.holds(p)} - ends.keys() if ends else set())

    @property
    def finished(self) -> bool:
        """True if everything up to the requested end was returned; RetriableError without a broker for too long."""
        if not self.until_end:
            return False
        if self.source.status.waiting_seconds > MAX_UNAVAILABLE_SECONDS:
            raise RetriableError(f"waited {MAX_UNAVAILABLE_SECONDS:.0f} s: {self.source.status.reason}")
        return self.source.finished and self.batcher.is_empty and self._peeked is None and self.ready is None

    @property
    def num_waiting(self) -> int:
        """Samples that wait, here or in the broker."""
        taken = sum(len(batch) for batch in (self.ready, self._peeked) if batch is not None)
        return taken + self.batcher.num_rows + self.source.num_waiting

    @property
    def is_behind(self) -> bool:
        """True if at least `batch_size` samples wait, however old they are: the next batch can be full."""
        return self.num_waiting >= self.batch_size

    @property
    def is_near_end(self) -> bool:
        """True if fewer samples wait than a full batch has at present."""
        return self.num_waiting < self.batcher.full_rows

    def poll(self, max_seconds: float) -> None:
        """Take what the stream has, unless a full batch waits already. Waits at most this long, or until one is due."""
        batcher, seconds = self.batcher, min(POLL_SECONDS, max_seconds)
        if not batcher.is_empty:
            batcher.is_behind = self.is_behind
            if batcher.is_full:
                return
            until_due = batcher.seconds_until_due()
            seconds = seconds if until_due is None else min(seconds, until_due)
        if self._peeked is not None or self.ready is not None:
            seconds = 0.0
        for columns in self.source.poll(max(0.0, seconds)):
            batcher.add(columns if self._negatives is None else self._negatives.drop(columns))

    def take(self) -> Batch | None:
        """Return a batch that is due; at the end of the stream, what is left."""
        is_behind = self.is_behind
        batch, self._peeked = self._peeked, None
        if batch is None:
            self.batcher.is_behind = is_behind
            batch = self.batcher.take() if self.batcher.is_full or not self.is_fixed else None
        if batch is None and self.until_end and self.source.finished:
            batch = self.batcher.flush()
        return batch

    def prepare(self) -> None:
        """Prepare the batch that is due, as `take` would return it; it stays the same until it is taken."""
        if self.ready is None and not (self.batcher.is_empty and self._peeked is None):
            self.ready = self.take()

    def prepare_rest(self) -> Batch | None:
        """Return the prepared batch. Other ranks learn now, so what waits here for more need not wait any longer."""
        if self.ready is None and self.batcher.max_wait_seconds < float("inf"):
            self.ready = self.batcher.flush()
        return self.ready

    def take_prepared(self) -> Batch | None:
        """Return the prepared batch, if there is one."""
        batch, self.ready = self.ready, None
        return batch

    def peek(self) -> Batch | None:
        """Return the batch that `take` returns next, if it is full already."""
        if self._peeked is None and self.batcher.is_full:
            self._peeked = self.batcher.take()
        return self._peeked

    def close(self) -> None:
        """Stop reading; what was not taken is dropped."""
        self.source.close()


class FeatureValues:
    """Looks at samples until `enough` of them; those after them cost nothing."""

    def __init__(self, schema: Schema, source: SourceConfig | None = None, *, enough: int | None = None) -> None:
        """`source`: with the fields that say by what scores are grouped, if they are. `enough`: None looks at all."""
        self.num_samples = 0  # looked at
        self.enough = enough
        self._ids = () if source is None else (source.request_field, source.group_field, source.check_field)
        self._has_value = dict.fromkeys((*schema.categorical, *schema.lists, *schema.dense, *schema.bias), False)
        for name in filter(None, self._ids):
            self._has_value.setdefault(name, False)

    @property
    def without(self) -> list[str]:
        """The features that have had no value, and such fields, those of bias too."""
        return [name for name, has_value in self._has_value.items() if not has_value]

    def add(self, samples: Batch | Columns) -> None:
        """Look at samples, unless there were enough before."""
        features = samples.features
        if self.enough is not None and self.num_samples >= self.enough:
            return
        self.num_samples += len(features.dense_NF)
        found = [
            *np.any(features.categorical_NC != MISSING_ID, axis=0).tolist(),
            *(len(ragged.ids_M) > 0 for ragged in features.lists),
            *np.any(~np.isnan(features.dense_NF), axis=0).tolist(),
        ]
        if features.bias_NB is not None:
            found += np.any(features.bias_NB != MISSING_ID, axis=0).tolist()
        for name, has_value in zip(self._has_value, found, strict=False):
            self._has_value[name] |= has_value
        for field, ids_N in zip(self._ids, (samples.request_N, samples.group_N, samples.signals_N), strict=False):
            if field is not None and ids_N is not None:
                self._has_value[field] |= bool(np.any(ids_N != MISSING_ID))


def without_values(features_R: Iterable[list[str]]) -> list[str]:
    """Return the features that no rank has seen a value of, from the lists of all ranks."""
    first, *others = features_R
    return [name for name in first if all(name in other for other in others)]
