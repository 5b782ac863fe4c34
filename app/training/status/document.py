"""What /v1/status tells of a running trainer."""

import os
from typing import TYPE_CHECKING, Any

from springtide_client.format.records import version_name
from springtide_client.system.clock import wall_ms
from springtide_client.system.sizes import parse_size

from app.training.health.gate import Verdict
from app.training.health.known_good import oldest_restorable
from app.training.status.writer import CATCHING_UP_MS, position_status

if TYPE_CHECKING:
    from app.training.trainer import Trainer


def document_of(trainer: "Trainer") -> dict[str, Any]:
    """The whole of it, as JSON has it."""
    state, log, table = trainer.state, trainer.log, trainer.state.learner.table
    condition, reason = condition_of(trainer)
    return {
        "name": trainer.config.name,
        "epoch": log.epoch,
        "pid": os.getpid(),
        "version": log.last_number or None,
        "durable_version": None if log.durable is None else log.durable.number,
        "trainer": condition,
        "reason": reason,
        "clean_end": False,
        "samples_trained": state.samples_trained,
        "samples_per_second": round(trainer.throughput.per_second(), 1),
        "positions": position_status(state.positions, trainer.committed.offsets, trainer.batches.end_offsets()),
        "scores": state.published_scores,
        "loss": state.loss,
        "dead_letters": dict(state.dead_letters),
        "topic_resets": trainer.source.num_resets,
        "commands": list(trainer.commands.kinds),
        "event_clock_ms": state.clock.now_ms,
        "idle_partitions": sorted(map(str, state.clock.idle)),
        "gate": {**trainer.gate.document(), "rollbacks": state.gate.rollbacks},
        "freshness_ms": {"p50": None, "p99": None},  # measured where versions are served
        "staleness_ms": max(0, wall_ms() - state.complete_until_ms) if state.complete_until_ms else None,
        "table": {
            "rows": table.rows_by_tier(),
            "bytes": table.bytes_by_tier(),
            **table.counters(),
            "refused_steps": state.learner.skipped_steps,
            "expiry_cutoffs_ms": horizons_of(trainer),
            "limits": state.limits.document(),
        },
    }


def condition_of(trainer: "Trainer") -> tuple[str, str]:
    """The trainer's state and why."""
    if (held := trainer.gate.held) is not None:
        return "waiting", f"the health gate holds the model back: {held.detail}; {mend_of(trainer, held)}"
    if trainer.log.is_full:
        share, half = trainer.config.log.log_bytes, parse_size(trainer.config.table.disk_bytes) // 2
        limit = "[log] log_bytes" if share < half else "half of [table] disk_bytes"
        mend = "the merger makes room (`springtide merge`, where none runs), or raise it"
        return "waiting", f"the log takes {limit}: {mend}"
    if trainer.source.state == "waiting":
        return "waiting", trainer.source.reason
    if reason := trainer.spill_reason or trainer.reason or trainer.log.stall_reason:
        return "waiting", reason
    if wall_ms() - trainer.complete_until_ms() > CATCHING_UP_MS:
        learned = {p: position.offset for p, position in trainer.state.positions.items()}
        lag = sum(max(0, end - learned.get(p, 0)) for p, end in trainer.batches.end_offsets().items())
        return "catching_up", f"{lag} records behind the stream's end"
    return "running", ""


def mend_of(trainer: "Trainer", held: Verdict) -> str:
    """What can be done."""
    good = version_name(oldest_restorable(trainer.log.directory, held.good))
    back = f"`springtide versions rollback {good} --skip` passes its samples over"
    return f"{back}, [gate] says what is too much"


def horizons_of(trainer: "Trainer") -> dict[str, int]:
    """By feature: rows last seen before are forgotten."""
    schema, horizons = trainer.config.schema, trainer.state.learner.table.expiry_cutoffs
    names = {schema.number(name): name for name in schema.features if name not in schema.share}
    return {names[number]: ms for number, ms in horizons.items() if number in names}
