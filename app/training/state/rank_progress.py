"""Progress that each rank sends to all others between two steps, before a checkpoint or a status.

Afterwards every rank knows what one process alone would know of the whole stream: positions, watermarks, dead letters,
scores, record times. So rank 0's version is complete, and all ranks decide alike.
"""

# N samples
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from springtide.app.training.state.logged_scores import UnsharedScores
from springtide.app.training.state.stream_state import StreamProgress
from springtide.app.training.state.training_state import TrainingState
from springtide.stream.positions import Partition
from springtide_client.errors import SpringtideError
from springtide_client.features import IdStrings
from springtide_client.format.tensors import Arrays


class DivergedError(SpringtideError):
    """The ranks do not have the same model any more: only a new start helps."""


@dataclass(frozen=True)
class RankProgress:
    """One rank's."""

    stream: StreamProgress
    features: list[Arrays]  # of the samples of each step since the last time, what scores keep of them
    record_ms_N: npt.NDArray[np.int64]  # of the samples since the newest version
    strings: list[IdStrings]  # of values by which scores are split
    expiry_cutoffs: dict[int, int]
    clocks: tuple[int, ...]  # what must be the same on every rank
    sampled_until: int  # the highest key hash that rank 0's sample of live rows has
    complete_until_ms: int | None  # None: this rank has no partitions
    limit_ms: int = 0
    idle: set[Partition] = field(default_factory=set)  # read to their end, and silent
    logged: UnsharedScores = field(default_factory=UnsharedScores)  # of the samples since the last time
    is_catching_up: bool = False  # one of the batches since the newest version was learned behind the stream

    @staticmethod
    def of(
        state: TrainingState, *, complete_until_ms: int | None, limit_ms: int = 0, idle: Collection[Partition] = ()
    ) -> "RankProgress":
        """Return this rank's; the newest step's report has been counted."""
        state.finish_step()
        budget, learner, stream = state.row_budget, state.learner, state.stream
        return RankProgress(
            stream=stream.progress(has_partitions=complete_until_ms is not None),
            features=state.pending_scores.features(),
            record_ms_N=state.own_record_times(),
            strings=state.pending_scores.take_strings(),
            expiry_cutoffs=learner.table.expiry_cutoffs,
            clocks=(learner.steps, stream.samples_trained, stream.clock.now_ms),
            sampled_until=0 if budget is None else budget.sample.last_key_hash,
            complete_until_ms=complete_until_ms,
            limit_ms=limit_ms,
            idle=set(idle),
            logged=state.logged.take_unshared(),
            is_catching_up=state.unpublished.is_catching_up,
        )


@dataclass(frozen=True)
class MergedProgress:
    """The progress of all ranks together, rank 0's first."""

    of_ranks: list[RankProgress]

    @property
    def complete_until_ms(self) -> int:
        """The wall time at which every record then readable is learned by now, on all ranks; 0 if there is none."""
        times = [one.complete_until_ms for one in self.of_ranks if one.complete_until_ms is not None]
        return min(times, default=0)

    @property
    def idle(self) -> set[Partition]:
        """Partitions that are read to their end, and silent."""
        return set().union(*(one.idle for one in self.of_ranks))

    @property
    def limit_ms(self) -> int:
        """How far the event clock may go."""
        return self.of_ranks[0].limit_ms

    def merge_into(self, state: TrainingState) -> None:
        """Let this rank know what all know. DivergedError if they do not agree on what is the same everywhere."""
        clocks = [one.clocks for one in self.of_ranks]
        if len(set(clocks)) > 1:
            raise DivergedError(f"the ranks have come apart (steps, samples, event clock): {clocks}; start them again")
        state.stream.merge([one.stream for one in self.of_ranks])
        state.pending_scores.merge([one.features for one in self.of_ranks], [one.strings for one in self.of_ranks])
        state.logged.merge([one.logged for one in self.of_ranks])
        cutoffs: dict[int, int] = {}
        for one in self.of_ranks:
            for feature, before_ms in one.expiry_cutoffs.items():
                cutoffs[feature] = max(before_ms, cutoffs.get(feature, before_ms))
        state.learner.table.raise_expiry_cutoffs(cutoffs)
        state.unpublished.is_catching_up = any(one.is_catching_up for one in self.of_ranks)
        state.prepare_checkpoint([one.record_ms_N for one in self.of_ranks], self.of_ranks[0].sampled_until)
