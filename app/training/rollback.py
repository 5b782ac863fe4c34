"""Rolls a running trainer back to an older version: on command, or by itself when the health gate trips.

With `skip` the samples learned since are not read again: they are counted and sent to the dead letters.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from springtide.app.errors import UserError
from springtide.app.processes.signals import StopSignals
from springtide.app.training.batches import POLL_SECONDS
from springtide.app.training.commands import PostponedError
from springtide.app.training.config import TrainerConfig
from springtide.app.training.gate import Gate, Verdict, oldest_restorable
from springtide.app.training.publisher import Publisher
from springtide.app.training.ranks.errors import FinalError
from springtide.app.training.ranks.loop_decision import LoopDecision
from springtide.app.training.session import TrainingSession
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.status import StatusWriter
from springtide.app.version_log.commands.queue import Command, command_entry
from springtide.app.version_log.commands.restore import RollbackVersion, build_rollback
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.trainer_meta import GateMeta, TrainerMeta
from springtide.stream.config import SourceConfig
from springtide.stream.dead_letter_producer import DeadLetterProducer
from springtide.stream.errors import StreamError
from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.source import read_again
from springtide.stream.join_state import JoinState
from springtide.stream.negatives import NegativeSampling
from springtide.stream.positions import Partition, Position, positions_from_meta, positions_to_meta
from springtide_client.errors import LogError, SpringtideError
from springtide_client.format.records import EPOCH_SHIFT, VersionMeta, version_name
from springtide_client.schema import Schema

REASON = "gate"
FLUSH_BYTES, FLUSH_SECONDS = 8 << 20, 30.0
RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a stream was learned, and its dead letters so far by reason."""

    positions: Mapping[Partition, Position]
    samples: int
    dead_letters: Mapping[str, int]
    join: JoinState | None = None
    num_dropped: int = 0

    @staticmethod
    def of(state: TrainingState) -> "Progress":
        stream = state.stream
        letters = dict(stream.dead_letters)
        return Progress(dict(stream.positions), state.samples_trained, letters, stream.join, stream.num_dropped)

    def dead_letters_after_skip(self, samples: int) -> dict[str, int]:
        """Return the counts once everything learned since that many samples is a dead letter."""
        num_skipped = max(0, self.samples - samples)
        return {**self.dead_letters, REASON: self.dead_letters.get(REASON, 0) + num_skipped}


def send_to_dead_letters(
    source: SourceConfig,
    history: HistoryConfig,
    schema: Schema,
    negatives: NegativeSampling | None,
    letters: DeadLetterProducer,
    begin: Mapping[Partition, Position],
    progress: Progress,
    detail: str,
) -> int:
    """Send every sample from `begin` up to `progress` as a dead letter that the broker has; returns their number.

    Records that cannot be decoded are left out: they are dead letters already; so are negatives that were dropped.
    Raises StreamError.
    """
    num_sent = 0
    for columns in read_again(source, history, schema, begin, progress.positions):
        if negatives is not None:
            columns = negatives.drop(columns)
        # of a record that holds several samples one letter
        for n in np.unique(columns.offset_N, return_index=True)[1].tolist():
            letters.send([columns.dead_letter(n, REASON, detail)])
            if letters.unacknowledged_bytes > FLUSH_BYTES:
                letters.flush(FLUSH_SECONDS)
        num_sent += len(columns)
    letters.flush(FLUSH_SECONDS)
    return num_sent


class RollbackOwner(Protocol):
    """The trainer's loop, stopped between two batches."""

    @property
    def session(self) -> TrainingSession:
        """The session loaded from the log; `reload` replaces it."""
        ...

    def vote(self) -> LoopDecision:
        """Tell the other ranks how things stand here, and hear from them. All ranks."""
        ...

    def publish(self) -> bool:
        """Publish a version; False if the gate or undelivered dead letters prevent it."""
        ...

    def execute_commands(self) -> None:
        """Execute all that wait. Call it right after a checkpoint."""
        ...

    def wait_until_durable(self) -> bool:
        """Wait until everything appended is durable; False if a stop was requested meanwhile."""
        ...

    def reload(self) -> None:
        """Continue from the end of the log."""
        ...


class ModelHeldError(FinalError):
    """The health gate holds the model back, and this run accepts no commands that could resolve it."""


class RollbackController:
    """Decides what becomes of a model that the gate holds back, and appends the versions that restore older ones."""

    def __init__(
        self,
        config: TrainerConfig,
        gate: Gate,
        dead_letters: DeadLetterProducer,
        publisher: Publisher,
        status: StatusWriter,
        signals: StopSignals,
        *,
        owner: RollbackOwner,
        until_end: bool,
    ) -> None:
        self._config, self._gate, self._dead_letters = config, gate, dead_letters
        self._publisher, self._status, self._signals = publisher, status, signals
        self._owner, self._until_end = owner, until_end
        self._built: RollbackVersion | None = None  # on rank 0
        self._held_progress: Progress | None = None  # of the model that the gate held, while commands may skip it

    def resolve_hold(self) -> None:
        """Roll back and skip, if `[gate] action` says so; otherwise wait for a command.

        A command is executed on the newest version that passed the gate. Unless it removes the cause, the gate trips
        again.
        """
        held = self._gate.held
        assert held is not None
        owner = self._owner
        agreed = owner.vote()
        if self._config.gate.action == "rollback" and not self._gate.needs_operator:
            self._roll_back_automatically(held)
        elif agreed.has_command:
            self._held_progress = Progress.of(owner.session.state)
            owner.reload()
            if owner.publish():
                owner.execute_commands()
            self._held_progress = None
        elif self._until_end:
            raise ModelHeldError(f"the health gate holds the model back: {held.detail}")
        else:
            self._signals.wait(POLL_SECONDS)

    def execute(self, command: Command) -> None:
        """Execute a rollback command: afterwards the owner's session is another one, and a version carries the result.

        Raises ValueError if the command is refused and PostponedError if it should be tried again; both leave
        everything as it was. Earlier commands are published first. Of several ranks the first builds the version, and
        all load it.
        """
        number, skip = command.body.get("version"), bool(command.body.get("skip"))
        if type(number) is not int or number < 1 << EPOCH_SHIFT:
            raise ValueError(f"{number!r} is not a valid version")
        state = self._owner.session.state
        if state.changed and not self._owner.publish():
            raise PostponedError
        progress = (self._held_progress or Progress.of(state)) if skip else None

        def build() -> VersionMeta:
            try:
                rollback = self._build(number)
                detail = f"rolled back by command {command.id}"
                num_skipped = self._skip(rollback, progress, detail) if progress else None
            except StreamError as error:
                logger.warning("rollback postponed", extra={"command": command.id, "reason": str(error)})
                self._publisher.postpone(RETRY_SECONDS)
                raise PostponedError from error
            except (UserError, SpringtideError) as error:
                raise ValueError(str(error)) from error
            result = {"version": rollback.meta.restores, **rollback.result}
            if num_skipped is not None:
                result["skipped"] = num_skipped
            entry = command_entry(command, result, samples_trained=state.samples_trained, positions={})
            return msgspec.structs.replace(rollback.meta, executed_commands=[entry])

        self._append(self._owner.session.ranks.on_rank0(build), progress)

    def _roll_back_automatically(self, verdict: Verdict) -> None:
        """Skip everything learned since the last good version. If it fails, it is tried again or left to a command."""
        ranks, progress = self._owner.session.ranks, Progress.of(self._owner.session.state)
        meta = ranks.on_rank0(lambda: self._build_automatically(verdict, progress))
        self._gate.needs_operator = ranks.broadcast(self._gate.needs_operator)
        if meta is not None:
            self._append(meta, progress)

    def _build_automatically(self, verdict: Verdict, progress: Progress) -> VersionMeta | None:
        """Build the version that skips what was learned; None if that has to be tried again, or left to a command."""
        session = self._owner.session
        directory, gate, config = session.log.directory, session.state.gate, self._config.gate
        good = oldest_restorable(directory, verdict.good)
        try:
            rollback = self._build(good)
            num_in_a_row = max(0, progress.samples - rollback.meta.samples_trained)
            if gate.since is not None and progress.samples - gate.since < config.logloss_samples:
                num_in_a_row += gate.skipped_in_a_row
            if num_in_a_row > config.max_skipped:
                logger.error(
                    "automatic rollback disabled: [gate] max_skipped samples skipped in a row",
                    extra={"samples": num_in_a_row},
                )
                self._gate.needs_operator = True
                return None
            num_skipped = self._skip(rollback, progress, verdict.detail)
        except PostponedError:
            return None  # a stop was requested
        except (UserError, SpringtideError) as error:
            if oldest_restorable(directory, good) != good:
                return None  # retention has just deleted its base: try again with the next version
            logger.warning("the gate cannot roll back", extra={"reason": str(error), "version": good})
            if isinstance(error, StreamError):
                self._signals.wait(RETRY_SECONDS)
            else:
                self._gate.needs_operator = True
            return None
        newest = GateMeta(
            rollbacks=gate.rollbacks + 1,
            skipped_in_a_row=num_in_a_row,
            since=rollback.meta.samples_trained,
            version=good,
            reason=verdict.reason,
            detail=verdict.detail,
            skipped=num_skipped,
        )
        trainer = msgspec.structs.replace(TrainerMeta.of(rollback.meta), gate=newest)
        return msgspec.structs.replace(rollback.meta, trainer=trainer.to_json())

    def _build(self, number: int) -> RollbackVersion:
        """Build the version that restores another, from everything in the log. PostponedError if a stop is requested.

        UserError if the version cannot be restored.
        """
        if not self._owner.wait_until_durable():
            raise PostponedError
        self._status.announce(f"rolling back to version {version_name(number)}")
        directory = self._owner.session.log.directory
        self._built = build_rollback(directory, number, window_samples=self._config.train.window_samples)
        return self._built

    def _skip(self, rollback: RollbackVersion, progress: Progress, detail: str) -> int:
        """Send what was learned since the restored version to the dead letters; returns the number. StreamError.

        Joined samples are counted alone: no record is one.
        """
        if progress.join is not None:
            return max(0, progress.samples - rollback.meta.samples_trained)
        begin = positions_from_meta(rollback.meta.positions)
        num_sent = send_to_dead_letters(
            self._config.source,
            self._config.history,
            self._config.schema.recorded,
            self._config.negatives,
            self._dead_letters,
            begin,
            progress,
            detail,
        )
        num_skipped = max(0, progress.samples - rollback.meta.samples_trained)
        if num_sent != num_skipped:
            # the broker has deleted some, or a record that was too far in the future is not any more
            logger.warning(
                "the dead letters are not all samples that are skipped",
                extra={"sent": num_sent, "skipped": num_skipped},
            )
        return num_skipped

    def _append(self, meta: VersionMeta, progress: Progress | None) -> None:
        """1. Append the version. 2. Make it durable. 3. Continue from the end of the log.

        `progress`: where the stream continues if samples are skipped; otherwise it is read again. Its rows are all in
        rank 0's part of the version.
        """
        built, self._built = self._built, None
        if progress is not None:
            letters = progress.dead_letters_after_skip(meta.samples_trained)
            trainer = msgspec.structs.replace(
                TrainerMeta.of(meta), join=progress.join, num_dropped=progress.num_dropped
            )
            meta = msgspec.structs.replace(
                meta,
                positions=positions_to_meta(progress.positions),
                dead_letters=letters,
                trainer=trainer.to_json(),
            )
        failpoint("before a rollback is appended")
        version = self._owner.session.log.append(meta, {} if built is None else built.arrays)
        if not self._owner.wait_until_durable():
            # no later version of this state may follow it; the next start finds it in the log, or the command pending
            raise LogError(f"stopped while the rollback to {version_name(meta.restores)} was waiting for the disk")
        failpoint("after a rollback is appended")
        logger.warning(
            "rolled back",
            extra={
                "to": version_name(meta.restores),
                "version": version_name(version.number),
                **({} if built is None else built.counts),
                "skipped_in_total": 0 if progress is None else meta.dead_letters.get(REASON, 0),
            },
        )
        self._owner.reload()
