"""Builds the status document from the trainer's parts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide.app.training.commands import CommandExecutor
from springtide.app.training.config import TrainerConfig
from springtide.app.training.health.gate import Gate, Verdict
from springtide.app.training.health.known_good import oldest_restorable
from springtide.app.training.session import TrainingSession
from springtide.app.training.status.rank_report import RankReport, added_up
from springtide.app.version_log.retention.pins import pin_names
from springtide.app.version_log.trainer_status import (
    Condition,
    NetStatus,
    PartitionStatus,
    ScoresStatus,
    TableStatus,
    TrainerStatus,
)
from springtide.stream.positions import Partition, Position
from springtide_client.format.records import version_name
from springtide_client.system.clock import wall_ms

# behind this, the trainer is no longer at the end of the stream
CATCHING_UP_MS = 3000


class TrainerFacts(NamedTuple):
    """The parts of a trainer that its status describes."""

    config: TrainerConfig
    session: TrainingSession
    gate: Gate
    samples_per_second: float
    complete_until_ms: int  # the wall time at which every record then readable is learned by now
    ranks: Sequence[RankReport]  # of all ranks


def trainer_status(facts: TrainerFacts) -> TrainerStatus:
    """Return the status as of now."""
    session, state = facts.session, facts.session.state
    log, table = session.log, state.learner.table
    condition, reason = trainer_condition(facts)
    return TrainerStatus(
        name=facts.config.name,
        version=log.last_number or None,
        durable_version=None if log.durable is None else log.durable.number,
        trainer=condition,
        reason=reason,
        samples_trained=state.samples_trained,
        samples_per_second=round(facts.samples_per_second, 1),
        positions=position_status(state.stream.positions, session.committed.offsets, _ends(facts)),
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
        topic_resets=max(rank.num_resets for rank in facts.ranks),
        commands=list(CommandExecutor.kinds),
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


def _ends(facts: TrainerFacts) -> dict[Partition, int]:
    """Return the end offsets of every rank's partitions."""
    return {partition: end for rank in facts.ranks for partition, end in rank.ends.items()}


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


def trainer_condition(facts: TrainerFacts) -> tuple[Condition, str]:
    """Return the trainer's condition, and why it is not "running"."""
    session, log = facts.session, facts.session.log
    if (held := facts.gate.held) is not None:
        return "waiting", f"the health gate holds the model back: {held.detail}; {_remedy(facts, held)}"
    if log.is_full:
        half = facts.config.table.disk_bytes // 2
        limit = "[log] log_bytes" if facts.config.log.log_bytes < half else "half of [table] disk_bytes"
        remedy = "goes on once the compactor has written it (run `springtide compact` if none runs)"
        if pins := pin_names(facts.config.log.path):
            remedy += f", or unpin a version (`springtide versions unpin`): {', '.join(pins)}"
        return "waiting", f"the log takes all of {limit} but the room for its next base: {remedy}"
    if waits_for := next((rank.waits_for for rank in facts.ranks if rank.waits_for), ""):
        return "waiting", waits_for
    if stalled := next(((n, rank.status.reason) for n, rank in enumerate(facts.ranks) if rank.status.reason), None):
        number, reason = stalled
        return "waiting", reason if len(facts.ranks) == 1 else f"rank {number}: {reason}"
    if wall_ms() - facts.complete_until_ms > CATCHING_UP_MS:
        learned = {p: position.offset for p, position in session.state.stream.positions.items()}
        lag = sum(max(0, end - learned.get(p, 0)) for p, end in _ends(facts).items())
        return "catching_up", f"{lag} records behind the stream's end"
    return "running", ""


def _remedy(facts: TrainerFacts, held: Verdict) -> str:
    good = version_name(oldest_restorable(facts.session.log.directory, held.good))
    return f"`springtide versions rollback {good} --skip` skips its samples; [gate] has the limits"


def _expiry_cutoffs(facts: TrainerFacts) -> dict[str, int]:
    """Return, by feature name, the last-seen time before which rows are deleted."""
    schema, cutoffs = facts.config.schema, facts.session.state.learner.table.expiry_cutoffs
    names = {schema.number(name): name for name in schema.features if name not in schema.share}
    return {names[number]: ms for number, ms in cutoffs.items() if number in names}
