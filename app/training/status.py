"""The trainer's status: a document built from its parts once a second, and the thread that writes it.

The thread writes it every second, so that a long step does not look like a dead trainer. `update` does not write to the
disk, except for the first status, so a slow disk cannot stall a step.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from springtide.app.training.batches import FeatureValues, without_values
from springtide.app.training.commands import CommandExecutor
from springtide.app.training.config import TrainerConfig
from springtide.app.training.gate import Gate, Verdict, oldest_restorable
from springtide.app.training.session import TrainingSession
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.step.memory_step import EQUAL, UNEQUAL, MemoryStep
from springtide.app.version_log.kept_versions import pin_names
from springtide.app.version_log.trainer_status import (
    Blocker,
    Condition,
    JoinLabelStatus,
    JoinStatus,
    MemoryCheckStatus,
    NetStatus,
    PartitionStatus,
    PublishStatus,
    RankStatus,
    ScoresStatus,
    TableStatus,
    TrainerStatus,
    sign_status,
    write_status,
)
from springtide.stream.config import SourceConfig
from springtide.stream.join_state import JoinReport, JoinState, LabelReport
from springtide.stream.positions import Partition, Position
from springtide_client.format.records import version_name
from springtide_client.system.clock import wall_ms

INTERVAL_SECONDS = 1.0  # between two writes
REPORT_SECONDS = 1.0  # between two documents
SPAN_SECONDS = 5.0  # of the throughput

logger = logging.getLogger(__name__)


class StatusWriter:
    """Keeps one epoch's status file up to date; the file's age is the trainer's heartbeat."""

    def __init__(self, log_path: Path, epoch: int, *, writes: bool = True) -> None:
        """`writes`: False on a rank above 0, whose status is part of rank 0's."""
        self.stall_reason: Callable[[], str] = str  # called from the thread while the trainer is silent; "": no stall
        self.status = TrainerStatus()
        self._log_path, self._epoch, self._writes = log_path, epoch, writes
        self._lock = threading.Lock()
        self._updated = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def update(self, status: TrainerStatus) -> None:
        """Write this status now, and again every second until the next one."""
        self.status = status
        if not self._writes:
            return
        if self._thread.is_alive():
            self._updated.set()
        else:
            self._write(status)
            if not self._stopping:
                self._thread.start()

    def announce(self, reason: str) -> None:
        """Update the reason alone: what the trainer is about to do takes a while."""
        self.update(msgspec.structs.replace(self.status, reason=reason))

    def set_epoch(self, epoch: int) -> None:
        """Continue in the file of another epoch."""
        with self._lock:
            self._epoch = epoch

    def close(self, status: TrainerStatus) -> TrainerStatus:
        """Stop the thread, write the last status, and return it as written."""
        self._stopping = True
        self._updated.set()
        if self._thread.is_alive():
            self._thread.join()
        self.status = self._write(status)
        return self.status

    def fail(self, error: BaseException) -> None:
        """Write the last status of a trainer that cannot continue."""
        reason = " ".join(str(error).split()) or type(error).__name__
        self.close(msgspec.structs.replace(self.status, trainer="failed", reason=reason, samples_per_second=0.0))

    def _run(self) -> None:
        while True:
            is_updated = self._updated.wait(INTERVAL_SECONDS)
            if self._stopping:
                return
            self._updated.clear()
            status = self.status
            if not is_updated and (reason := self.stall_reason()):
                status = msgspec.structs.replace(status, trainer="waiting", reason=reason)
            self._write(status)

    def _write(self, status: TrainerStatus) -> TrainerStatus:
        with self._lock:
            signed = sign_status(status, self._epoch)
            if not self._writes:
                return signed
            try:
                write_status(self._log_path, self._epoch, signed)
            except OSError as error:
                # a full disk must not end the learning: the log itself waits for room
                logger.warning("the status cannot be written", extra={"reason": str(error)})
            return signed


class ThroughputMeter:
    """Measures how fast a count grows, over the last five seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: deque[tuple[float, int]] = deque()

    def record(self, count: int) -> None:
        """Note the count as of now."""
        now = self._clock()
        self._records.append((now, count))
        while len(self._records) > 2 and self._records[1][0] <= now - SPAN_SECONDS:
            self._records.popleft()

    def per_second(self) -> float:
        """Return the rate; 0 before the second record."""
        if len(self._records) < 2:
            return 0.0
        (first, before), (last, after) = self._records[0], self._records[-1]
        return (after - before) / (last - first) if last > first else 0.0


@dataclass(frozen=True)
class RankReport:
    """One rank's part of the status."""

    status: RankStatus
    ends: dict[Partition, int]  # of its partitions, and of those with events to join
    counters: dict[str, int]  # of its tables
    num_resets: int
    num_deleted_unread: int
    waits_for: str  # what its source waits for; "" while it reads
    num_first_samples: int  # since its start, looked at for values of features
    without_values: list[str]  # the features of which those had none
    is_catching_up: bool
    blocked_by: Blocker  # what `status.reason` is about
    read: dict[Partition, Position] = field(default_factory=dict)  # how far they are read for what is learned
    join: JoinReport | None = None  # of a stream whose labels are joined

    @staticmethod
    def of(
        session: TrainingSession, values: FeatureValues, *, samples_per_second: float, stall_reason: str
    ) -> "RankReport":
        """Return this rank's."""
        table, source, ends = session.state.learner.table, session.source, session.batches.end_offsets()
        positions = session.positions_read()
        lags = [max(0, end - (positions[p].offset if p in positions else 0)) for p, end in ends.items()]
        waits_for = source.status.reason if source.status.state == "waiting" else ""
        blocked_by: Blocker = "source" if waits_for else ""
        if (join := source.join_report()) is not None and join.waits_for:
            waits_for, blocked_by = join.reason, join.waits_for
        elif stall_reason and not waits_for:
            by_log: Blocker = "log" if session.log.stall_reason else "dead_letters"
            blocked_by = "spill" if session.stall_reason() else by_log
        status = RankStatus(
            partitions=len(ends),
            lag=sum(lags) if lags else None,
            samples_per_second=round(samples_per_second, 1),
            rows=table.rows_by_tier(),
            bytes=table.bytes_by_tier(),
            reason=waits_for or stall_reason,
        )
        return RankReport(
            status,
            ends,
            table.counters(),
            source.status.num_resets,
            source.status.num_deleted_unread,
            waits_for,
            values.num_samples,
            values.without,
            session.is_catching_up,
            blocked_by,
            {partition: position for partition, position in positions.items() if partition in ends},
            join,
        )


def added_up(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of all ranks, by name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            sums[name] = sums.get(name, 0) + number
    return sums


class TrainerFacts(NamedTuple):
    """The parts of a trainer that its status describes."""

    config: TrainerConfig
    session: TrainingSession
    gate: Gate
    samples_per_second: float
    stream_per_second: float  # records
    learned_per_second: float  # of them
    publishing: PublishStatus
    complete_until_ms: int  # the wall time at which every record then readable is learned by now
    ranks: Sequence[RankReport]  # of all ranks


def trainer_status(facts: TrainerFacts) -> TrainerStatus:
    """Return the status as of now."""
    session, state = facts.session, facts.session.state
    log, table = session.log, state.learner.table
    condition = trainer_condition(facts)
    return TrainerStatus(
        name=facts.config.name,
        version=log.last_number or None,
        durable_version=None if log.durable is None else log.durable.number,
        trainer=condition.trainer,
        reason=condition.reason,
        blocked_by=condition.blocked_by,
        samples_trained=state.samples_trained,
        samples_per_second=round(facts.samples_per_second, 1),
        stream_per_second=round(facts.stream_per_second, 1),
        publishing=facts.publishing,
        positions=position_status(
            positions_read(session, facts.ranks), session.committed.offsets, end_offsets(facts.ranks)
        ),
        scores=msgspec.convert(state.detailed_scores(), ScoresStatus),
        loss=state.loss,
        net=NetStatus(
            lr=state.learner.update.lr,
            rows_lr=table.step_lr,
            gradient_norm=state.learner.gradient_norm,
            steps=state.learner.steps,
            clipped_steps=state.learner.clipped_steps,
            wide=facts.config.model.has_wide_part,
        ),
        dead_letters=dict(state.stream.dead_letters),
        dropped_negatives=state.stream.num_dropped,
        memory={} if state.learner.memory is None else state.learner.memory.exceptions,
        memory_check=memory_check_status(facts.config.source, state.learner.memory),
        topic_resets=max(rank.num_resets for rank in facts.ranks),
        records_deleted_unread=sum(rank.num_deleted_unread for rank in facts.ranks),
        commands=list(CommandExecutor.kinds),
        join=join_status([rank.join for rank in facts.ranks], state),
        event_clock_ms=state.stream.clock.now_ms,
        idle_partitions=sorted(map(str, state.stream.clock.idle)),
        gate=msgspec.structs.replace(facts.gate.status(), rollbacks=state.gate.rollbacks),
        staleness_ms=max(0, wall_ms() - state.stream.complete_until_ms) if state.stream.complete_until_ms else None,
        table=TableStatus(
            rows=added_up(rank.status.rows for rank in facts.ranks),
            bytes=added_up(rank.status.bytes for rank in facts.ranks),
            counters=added_up(rank.counters for rank in facts.ranks),
            skipped_steps=state.learner.skipped_steps,
            expiry_cutoffs_ms=_expiry_cutoffs(facts),
            limits=state.limits.document(),
        ),
        ranks=[rank.status for rank in facts.ranks] if len(facts.ranks) > 1 else [],
    )


def end_offsets(ranks: Iterable[RankReport]) -> dict[Partition, int]:
    """Return the end offsets of every rank's partitions."""
    return {partition: end for rank in ranks for partition, end in rank.ends.items()}


def positions_read(session: TrainingSession, ranks: Iterable[RankReport]) -> dict[Partition, Position]:
    """Return how far each partition is read; one that several ranks read, by the last of them."""
    of_ranks: dict[Partition, Position] = {}
    for rank in ranks:
        for partition, position in rank.read.items():
            of_ranks[partition] = min(of_ranks.get(partition, position), position, key=lambda at: at.offset)
    return {**session.positions_read(), **of_ranks}


def memory_check_status(source: SourceConfig, memory: MemoryStep | None) -> MemoryCheckStatus | None:
    """Return how much was served as it is trained; None where no field of records says."""
    if memory is None or source.check_field is None:
        return None
    equal, unequal = memory.counts[EQUAL], memory.counts[UNEQUAL]
    share = equal / (equal + unequal) if equal + unequal else None
    return MemoryCheckStatus(equal, unequal, share, memory.unequal_by_feature)


def join_status(reports: Iterable[JoinReport | None], state: TrainingState) -> JoinStatus | None:
    """Return what the joins of all ranks hold, and what the slowest one waits for; None without one."""
    known = [report for report in reports if report is not None]
    if not known:
        return None
    slowest = min(known, key=lambda report: report.watermark_ms or 0)
    return JoinStatus(
        slowest.watermark_ms,
        sum(report.num_impressions for report in known),
        sum(report.num_events for report in known),
        sum(report.num_duplicates for report in known),
        slowest.slowest,
        label_status([report.labels for report in known], state.stream.join),
        state.stream.num_late,
        state.stream.num_settled,
        state.logged.served.document() if state.logged.served.num else {},
        sum(report.memory_bytes for report in known),
        sum(report.disk_bytes for report in known),
        sorted({name for report in known for name in report.suspect}),
    )


def label_status(
    labels_R: Sequence[Mapping[str, LabelReport]], learned: JoinState | None
) -> dict[str, JoinLabelStatus]:
    """Return what became of each label's events, by the joins of all ranks; `learned`: what all of them have learned.

    The share of events on time is that of what is learned, once something is.
    """
    shares = {} if learned is None else {name: share.share for name, share in learned.total_shares().items()}
    names = {name for labels in labels_R for name in labels}
    reports = {name: [labels[name] for labels in labels_R if name in labels] for name in sorted(names)}
    return {
        name: JoinLabelStatus(
            max(label.num_unmatched for label in of_ranks), shares.get(name, of_ranks[0].on_time_share)
        )
        for name, of_ranks in reports.items()
    }


def position_status(
    learned: Mapping[Partition, Position], committed: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> dict[str, PartitionStatus]:
    """Return the offsets of every partition that is learned from or known to exist."""
    lines = {}
    for partition in sorted({*learned, *ends}):
        offset = learned[partition].offset if partition in learned else 0
        end = ends.get(partition)
        lag = None if end is None else max(0, end - offset)
        lines[str(partition)] = PartitionStatus(offset, committed.get(partition, 0), end, lag)
    return lines


class TrainerCondition(NamedTuple):
    """The trainer's condition, why it is not "running", and what keeps it from learning as fast as the stream comes."""

    trainer: Condition
    reason: str = ""
    blocked_by: Blocker = ""


def trainer_condition(facts: TrainerFacts) -> TrainerCondition:
    """Return the trainer's condition."""
    session, log = facts.session, facts.session.log
    if (held := facts.gate.held) is not None:
        reason = f"the health gate holds the model back: {held.detail}; {_remedy(facts, held)}"
        return TrainerCondition("waiting", reason, "gate")
    if log.is_full:
        half = facts.config.table.disk_bytes // 2
        limit = "[log] log_bytes" if facts.config.log.log_bytes < half else "half of [table] disk_bytes"
        remedy = "goes on once the compactor has written it (run `springtide compact` if none runs)"
        if pins := pin_names(facts.config.log.path):
            remedy += f", or unpin a version (`springtide versions unpin`): {', '.join(pins)}"
        reason = f"the log takes all of {limit} but the room for its next base: {remedy}"
        return TrainerCondition("waiting", reason, "log")
    if waiting := next((rank for rank in facts.ranks if rank.waits_for), None):
        return TrainerCondition("waiting", waiting.waits_for, waiting.blocked_by)
    if stalled := next(((n, rank) for n, rank in enumerate(facts.ranks) if rank.status.reason), None):
        number, rank = stalled
        reason = rank.status.reason if len(facts.ranks) == 1 else f"rank {number}: {rank.status.reason}"
        return TrainerCondition("waiting", reason, rank.blocked_by)
    learned = {p: position.offset for p, position in positions_read(session, facts.ranks).items()}
    lag = sum(max(0, end - learned.get(p, 0)) for p, end in end_offsets(facts.ranks).items())
    is_catching_up = lag > 0 and any(rank.is_catching_up for rank in facts.ranks)
    if not is_catching_up and wall_ms() - facts.complete_until_ms <= session.behind_ms:
        return TrainerCondition("running")
    reason = session.source.status.progress or f"{lag} records behind the stream's end"
    if facts.stream_per_second <= facts.learned_per_second:
        return TrainerCondition("catching_up", reason)
    rates = f"it brings {facts.stream_per_second:,.0f} a second, {facts.learned_per_second:,.0f} are learned"
    return TrainerCondition("catching_up", f"{reason}: {rates}", "learner")


def _remedy(facts: TrainerFacts, held: Verdict) -> str:
    good = version_name(oldest_restorable(facts.session.log.directory, held.good))
    return f"`springtide versions rollback {good} --skip` skips its samples; [gate] has the limits"


def _expiry_cutoffs(facts: TrainerFacts) -> dict[str, int]:
    """Return, by feature name, the last-seen time before which rows are deleted."""
    schema, cutoffs = facts.config.schema, facts.session.state.learner.table.expiry_cutoffs
    names = {schema.number(name): name for name in schema.features if name not in schema.share}
    return {names[number]: ms for number, ms in cutoffs.items() if number in names}


NUM_FIRST_SAMPLES = 10_000  # since the start; a feature without a value in them is often misspelt


class TrainerStatusReporter:
    """Builds status documents and hands them to the writer."""

    def __init__(
        self, config: TrainerConfig, gate: Gate, writer: StatusWriter, publishing: Callable[[], PublishStatus]
    ) -> None:
        """`publishing`: how often versions are published."""
        self._config, self._gate, self._writer, self._publishing = config, gate, writer, publishing
        self._stream, self._learned = ThroughputMeter(), ThroughputMeter()  # records of all ranks
        self._throughput = ThroughputMeter()
        self._own_throughput = ThroughputMeter()  # of this rank's batches
        self.due_at = float("-inf")  # of the next report, by the monotonic clock
        self.values = FeatureValues(
            config.schema.recorded, config.source, enough=NUM_FIRST_SAMPLES
        )  # of this rank's samples
        self._has_warned = False

    def report(self, session: TrainingSession, *, stall_reason: str) -> None:
        """Report the status as of now. `stall_reason`: why learning or publishing waits; "" if neither does.

        All ranks: each tells what it knows.
        """
        self.due_at = time.monotonic() + REPORT_SECONDS
        self._throughput.record(session.state.samples_trained)
        self._own_throughput.record(session.state.own_samples)
        self._writer.update(self._status(session, stall_reason))

    def last_status(self, session: TrainingSession, *, stall_reason: str) -> TrainerStatus:
        """Return the status of a clean shutdown, to be written once everything is closed."""
        held = self._gate.held
        reason = "ended" if held is None else f"ended while the health gate held the model back: {held.detail}"
        status = self._status(session, stall_reason, is_end=session.batches.until_end)
        return msgspec.structs.replace(
            status, trainer="stopped", reason=reason, clean_shutdown=True, samples_per_second=0.0
        )

    def _status(self, session: TrainingSession, stall_reason: str, *, is_end: bool = False) -> TrainerStatus:
        progress = session.exchange()
        rate = self._own_throughput.per_second()
        own = RankReport.of(session, self.values, samples_per_second=rate, stall_reason=stall_reason)
        reports = session.ranks.all_gather(own)
        if not session.ranks.is_first:
            return self._writer.status
        if not self._has_warned:
            self._warn_of_missing(reports, is_end=is_end)
        if any(report.ends for report in reports):
            self._stream.record(sum(end_offsets(reports).values()))
            self._learned.record(sum(position.offset for position in positions_read(session, reports).values()))
        facts = TrainerFacts(
            self._config,
            session,
            self._gate,
            self._throughput.per_second(),
            max(0.0, self._stream.per_second()),
            max(0.0, self._learned.per_second()),
            self._publishing(),
            progress.complete_until_ms,
            reports,
        )
        return trainer_status(facts)

    def _warn_of_missing(self, reports: Sequence[RankReport], *, is_end: bool) -> None:
        """Name the features that had no value in the first samples, once there are enough of them or no more."""
        num_samples = sum(report.num_first_samples for report in reports)
        if num_samples >= NUM_FIRST_SAMPLES or (is_end and num_samples):
            self._has_warned = True
            if names := without_values(report.without_values for report in reports):
                logger.warning(
                    "fields without any value so far count as missing: compare [schema] with the records",
                    extra={"features": ", ".join(names), "samples": num_samples},
                )
