"""A rank's report to rank 0, for the status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from springtide.app.training.input.feature_values import FeatureValues
from springtide.app.training.session import TrainingSession
from springtide.app.version_log.trainer_status import RankStatus
from springtide.stream.positions import Partition


@dataclass(frozen=True)
class RankReport:
    """One rank's part of the status."""

    status: RankStatus
    ends: dict[Partition, int]  # of its partitions
    counters: dict[str, int]  # of its tables
    num_resets: int
    waits_for: str  # what its source waits for; "" while it reads
    num_first_samples: int  # since its start, looked at for values of features
    without_values: list[str]  # the features of which those had none

    @staticmethod
    def of(
        session: TrainingSession, values: FeatureValues, *, samples_per_second: float, stall_reason: str
    ) -> "RankReport":
        """Return this rank's."""
        table, source, ends = session.state.learner.table, session.source, session.batches.end_offsets()
        positions = session.state.stream.positions
        lags = [max(0, end - (positions[p].offset if p in positions else 0)) for p, end in ends.items()]
        waits_for = source.status.reason if source.status.state == "waiting" else ""
        status = RankStatus(
            partitions=len(ends),
            lag=sum(lags) if lags else None,
            samples_per_second=round(samples_per_second, 1),
            rows=table.rows_by_tier(),
            bytes=table.bytes_by_tier(),
            reason=waits_for or stall_reason,
        )
        return RankReport(
            status, ends, table.counters(), source.status.num_resets, waits_for, values.num_samples, values.without
        )


def added_up(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of all ranks, by name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            sums[name] = sums.get(name, 0) + number
    return sums
