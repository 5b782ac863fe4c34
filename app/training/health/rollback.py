"""Back to an older version while a trainer runs: by order, or by the health gate's own hand.

With `skip` what was learned since is not read again: it goes to the dead letters, is counted and passed over.
"""

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from springtide_client.errors import LogError, SpringtideError
from springtide_client.format.records import EPOCH_SHIFT, version_name

from app.errors import UserError
from app.training.commands import PostponedError
from app.training.health.gate import Verdict
from app.training.health.known_good import oldest_restorable
from app.training.input.batches import POLL_SECONDS
from app.training.input.skip import REASON, Progress, send_to_dead_letters
from app.version_log.commands.queue import Command, command_entry
from app.version_log.commands.rollback import RollbackVersion, build_rollback
from app.version_log.failpoints import failpoint
from app.version_log.trainer_meta import GateMeta, TrainerMeta
from stream.errors import StreamError
from stream.positions import positions_from_meta, positions_to_meta

if TYPE_CHECKING:
    from app.training.trainer import Trainer

RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


class ModelHeldError(SpringtideError):
    """The health gate holds the model back, and nobody will come to decide."""


def resolve_hold(trainer: "Trainer") -> None:
    """What the gate holds back: thrown away and passed over, or kept until an order comes.

    An order finds the newest version that passed. Unless it changes what went wrong, the gate closes once more.
    """
    held = trainer.gate.held
    assert held is not None
    if trainer.config.gate.action == "rollback" and not trainer.gate.needs_operator:
        trainer.gate.needs_operator = not roll_back_from_gate(trainer, held)
    elif trainer.commands.has_pending:
        trainer.stand = Progress.of(trainer.state)
        trainer.reload()
        if trainer.commit():
            trainer.retry_while_spill_full(lambda: trainer.commands.execute())
        trainer.stand = None
    elif trainer.until_end:
        raise ModelHeldError(f"the health gate holds the model back: {held.detail}")
    else:
        trainer.signals.wait(POLL_SECONDS)


def roll_back_by_order(trainer: "Trainer", order: Command) -> dict[str, Any] | None:
    """Executes it: everything executed before is published first. None: done; else why not; PostponedError."""
    number, skip = order.body.get("version"), bool(order.body.get("skip"))
    if type(number) is not int or number < 1 << EPOCH_SHIFT:
        raise ValueError(f"{number!r} is no version")
    if trainer.state.changed and not trainer.commit():
        raise PostponedError
    stand = (trainer.stand or Progress.of(trainer.state)) if skip else None
    try:
        rollback = prepare(trainer, number)
        told = skip_samples(trainer, rollback, stand, f"rolled back by order {order.id}") if stand else {}
    except StreamError as error:
        logger.warning("a rollback is put off", extra={"order": order.id, "reason": str(error)})
        trainer.postpone(RETRY_SECONDS)
        raise PostponedError from error
    except (UserError, SpringtideError) as error:
        return {"refused": str(error)}
    result = {"version": number, **rollback.counts, **told}
    entry = command_entry(order, result, samples_trained=trainer.state.samples_trained, positions={})
    append(trainer, rollback, stand, msgspec.structs.replace(rollback.meta, executed_commands=[entry]))
    return None


def roll_back_from_gate(trainer: "Trainer", verdict: Verdict) -> bool:
    """Throws away what the gate holds back; True also where it is worth another try. False: an order must decide."""
    state, stand = trainer.state, Progress.of(trainer.state)
    good = oldest_restorable(trainer.log.directory, verdict.good)
    since = state.gate.since
    is_again = since is not None and stand.samples - since < trainer.config.gate.logloss_samples
    try:
        rollback = prepare(trainer, good)
        in_a_row = stand.samples - rollback.meta.samples_trained + (state.gate.skipped_in_a_row if is_again else 0)
        if in_a_row > trainer.config.gate.max_skipped:
            logger.error("the gate passes nothing over any more", extra={"samples": in_a_row})
            return False
        told = skip_samples(trainer, rollback, stand, verdict.detail)
    except PostponedError:
        return True
    except (UserError, SpringtideError) as error:
        if oldest_restorable(trainer.log.directory, good) != good:
            return True  # its base was retired this moment
        logger.warning("the gate cannot roll back", extra={"reason": str(error), "version": good})
        return isinstance(error, StreamError) and not trainer.signals.wait(RETRY_SECONDS)
    gate = GateMeta(
        rollbacks=state.gate.rollbacks + 1,
        skipped_in_a_row=in_a_row,
        since=rollback.meta.samples_trained,
        version=good,
        reason=verdict.reason,
        detail=verdict.detail,
        **told,
    )
    meta = msgspec.structs.replace(TrainerMeta.of(rollback.meta), gate=gate)
    append(trainer, rollback, stand, msgspec.structs.replace(rollback.meta, trainer=meta.to_json()))
    return True


def prepare(trainer: "Trainer", number: int) -> RollbackVersion:
    """The version that restores another, from all that is in the log. PostponedError where somebody asked to stop."""
    if not trainer.wait_until_durable():
        raise PostponedError
    trainer.status.update({**trainer.status.document, "reason": f"going back to version {version_name(number)}"})
    return build_rollback(trainer.log.directory, number, window_samples=trainer.config.train.window_samples)


def skip_samples(trainer: "Trainer", rollback: RollbackVersion, stand: Progress, detail: str) -> dict[str, int]:
    """Sends what is passed over to the dead letters; what the version says of it."""
    begin = positions_from_meta(rollback.meta.positions)
    num_sent = send_to_dead_letters(trainer.config, trainer.dead_letters, begin, stand, detail)
    num_skipped = max(0, stand.samples - rollback.meta.samples_trained)
    if num_sent != num_skipped:
        # a broker that keeps no more of it, or a clock by which a record is too far in the future no more
        logger.warning("dead letters are not all that is skipped", extra={"sent": num_sent, "skipped": num_skipped})
    return {"skipped": num_skipped}


def append(trainer: "Trainer", rollback: RollbackVersion, stand: Progress | None, meta: Any) -> None:
    """1. Append the version. 2. Make it durable. 3. Begin anew from the log."""
    if stand is not None:
        letters = stand.skipped_since(rollback.meta.samples_trained)
        meta = msgspec.structs.replace(meta, positions=positions_to_meta(stand.positions), dead_letters=letters)
    failpoint("before a rollback is appended")
    version = trainer.log.append(meta, rollback.arrays)
    if not trainer.wait_until_durable():
        # nothing of this state may come after it; whoever goes on finds it in the log, or the order where it was
        raise LogError(f"asked to stop while going back to {version_name(meta.restores)} waits for the disk")
    failpoint("after a rollback is appended")
    skipped = 0 if stand is None else meta.dead_letters.get(REASON, 0)
    logger.warning(
        "rolled back",
        extra={
            "to": version_name(meta.restores),
            "version": version_name(version.number),
            **rollback.counts,
            "dead_by_gate": skipped,
        },
    )
    trainer.reload()
