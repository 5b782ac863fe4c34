"""How far the stream was learned: positions, event clock, counts, and the erased ids to filter out of what follows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from springtide.app.version_log.trainer_meta import (
    TrainerMeta,
    erasures_ahead,
    erasures_from_meta,
    furthest_read,
    high_water_marks,
    max_positions,
)
from springtide.stream.columns import Batch
from springtide.stream.decode.erasure_filter import Erasure
from springtide.stream.join.handover import take_over
from springtide.stream.join_state import LATE, NOTHING_JOINED, SETTLED, JoinState
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare, Position, positions_from_meta
from springtide.stream.watermark import WatermarkClock
from springtide_client.format.records import VersionMeta


@dataclass(frozen=True)
class StreamProgress:
    """One rank's knowledge of its partitions, and what it has counted since the last exchange."""

    positions: dict[Partition, Position]
    watermarks: dict[Partition, int]
    idle: set[Partition]
    dead_letters: dict[str, int]
    num_dropped: int = 0
    num_late: int = 0
    num_settled: int = 0
    join: JoinState | None = None  # of a stream whose labels are joined: this rank's part


class StreamState:
    """Advances with each learned batch. Knows no Kafka and no model.

    Of several ranks each advances its share of the partitions; `merge` tells it about those of the others. Samples and
    the event clock are always those of all.
    """

    def __init__(self, share: PartitionShare = ALL_PARTITIONS) -> None:
        self.share = share
        self.positions: dict[Partition, Position] = {}  # the next offsets to learn
        self.clock = WatermarkClock()
        self.join: JoinState | None = None  # of a stream whose labels are joined: of all ranks, as of the last exchange
        self.own_join: JoinState | None = None  # this rank's part, up to date
        self.samples_trained = 0
        self.num_late = self.num_settled = 0  # samples that correct what was learned of their impressions
        self.dead_letters: dict[str, int] = {}  # by reason
        self.num_dropped = 0  # negatives
        self.complete_until_ms = 0  # every record that was readable then is learned
        self.erasures: list[Erasure] = []  # those whose ids the stream from `positions` on still contains
        self.logged_erasures: list[Erasure] = []  # all that the log had when learning began
        self.high_water_marks: dict[Partition, Position] = {}  # how far it was ever learned, where further than now
        self.sought_by = ""  # the launch that has changed the positions last
        self._unshared_letters: dict[str, int] = {}  # dead letters since the last exchange, by reason
        self._unshared_dropped = 0  # negatives dropped since then
        self._unshared_late = self._unshared_settled = 0  # samples since then

    def advance(self, batch: Batch, *, limit_ms: int | None, num_samples: int | None = None) -> None:
        """Move past a batch; the event clock goes no further than `limit_ms`.

        `num_samples`: of the batches of all ranks; their event clock is moved by `advance_clock` instead.
        """
        self.samples_trained += len(batch) if num_samples is None else num_samples
        for letter in batch.dead_letters:
            self.dead_letters[letter.reason] = self.dead_letters.get(letter.reason, 0) + 1
            self._unshared_letters[letter.reason] = self._unshared_letters.get(letter.reason, 0) + 1
        self.num_dropped += batch.num_dropped
        self._unshared_dropped += batch.num_dropped
        if batch.join is not None:
            self.own_join = batch.join
            self.join = batch.join if self.share.num_ranks == 1 else self.join
        if batch.grade_N is not None:
            num_late, num_settled = (int(np.count_nonzero(batch.grade_N == grade)) for grade in (LATE, SETTLED))
            self.num_late, self.num_settled = self.num_late + num_late, self.num_settled + num_settled
            self._unshared_late += num_late
            self._unshared_settled += num_settled
        for partition, offset in batch.positions.items():
            self.positions[partition] = Position(batch.topic_ids.get(partition, ""), offset)
        if self.share.num_ranks == 1:
            self.clock.observe(batch.watermarks, limit_ms=limit_ms)
            if finished := [p for p in batch.positions if self.positions[p].is_finished]:
                self.clock.mark_idle(finished, limit_ms=limit_ms)  # the topic's clock goes on alone
        else:
            self.clock.note(batch.watermarks)

    def progress(self, *, has_partitions: bool = True) -> StreamProgress:
        """Return what the other ranks need to know of this one's partitions, of which it may have none."""
        holds = self.share.holds
        return StreamProgress(
            {partition: at for partition, at in self.positions.items() if holds(partition)},
            {partition: event_ms for partition, event_ms in self.clock.watermarks.items() if holds(partition)},
            {partition for partition in self.clock.idle if holds(partition)},
            dict(self._unshared_letters),
            self._unshared_dropped,
            self._unshared_late,
            self._unshared_settled,
            self.own_join or (None if has_partitions else NOTHING_JOINED),
        )

    def merge(self, of_ranks: Sequence[StreamProgress]) -> None:
        """Take over what each rank knows of its partitions, rank 0's first. Afterwards all ranks know the same."""
        for rank, progress in enumerate(of_ranks):
            self.positions.update(progress.positions)
            self.clock.watermarks.update(progress.watermarks)
            if rank == self.share.rank:
                continue  # its own are counted
            for reason, count in progress.dead_letters.items():
                self.dead_letters[reason] = self.dead_letters.get(reason, 0) + count
            self.num_dropped += progress.num_dropped
            self.num_late += progress.num_late
            self.num_settled += progress.num_settled
        self.join = JoinState.of_ranks([progress.join for progress in of_ranks])
        if self.join is not None:  # all ranks read the events
            ids = self.join.topic_ids()
            self.positions.update({p: Position(ids[p], offset) for p, offset in self.join.replay_offsets().items()})
        self.clock.idle = set().union(*(progress.idle for progress in of_ranks))
        self.positions = dict(sorted(self.positions.items()))
        self._unshared_letters, self._unshared_dropped = {}, 0
        self._unshared_late = self._unshared_settled = 0

    @property
    def max_positions(self) -> dict[Partition, Position]:
        """How far the stream was ever learned: an erasure affects all records before this.

        Of a join: how far it was read, for `positions` are those from which it is read again.
        """
        return max_positions(furthest_read(self.positions, self.join), self.high_water_marks)

    def add_erasures(self, erasures: Iterable[Erasure]) -> None:
        """From now on, filter these ids out of records from before their erasure."""
        self.erasures = erasures_ahead([*self.erasures, *erasures], self.positions)

    def seek(self, positions: Mapping[Partition, Position]) -> None:
        """Continue from other positions; erased ids stay erased, also in records that are read again."""
        furthest = self.max_positions
        self.positions.update(positions)
        self.high_water_marks = max_positions(self.positions, furthest)
        self.add_erasures(self.logged_erasures)

    def drop_passed(self) -> None:
        """Forget erasures and high-water marks that the stream has passed."""
        self.erasures = erasures_ahead(self.erasures, self.positions)
        if self.high_water_marks and self.max_positions == self.positions:
            self.high_water_marks = {}

    def restore(self, meta: VersionMeta, trainer: TrainerMeta) -> None:
        """Become what a version says; `logged_erasures` are not in a single version."""
        self.positions = positions_from_meta(meta.positions)
        self.samples_trained = meta.samples_trained
        self.dead_letters = dict(meta.dead_letters)
        self.complete_until_ms = meta.complete_until_ms
        watermarks = {Partition.parse(name): ms for name, ms in trainer.watermarks.items()}
        self.clock = WatermarkClock(meta.event_clock_ms, watermarks, map(Partition.parse, trainer.idle))
        self.high_water_marks, self.sought_by = high_water_marks(meta), trainer.sought_by
        self.join, self.num_dropped = trainer.join, trainer.num_dropped
        self.own_join = None if trainer.join is None else take_over(trainer.join, self.share)
        self.num_late, self.num_settled = trainer.num_late, trainer.num_settled
        self.erasures = erasures_ahead(erasures_from_meta(trainer.erasures), self.positions)
