"""Writes versions: when one is due, whether the gate and the broker let it pass, and which offsets are durable."""

import logging
import time
from collections.abc import Callable

from springtide.app.training.gate import Gate
from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.session import TrainingSession
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.write.writer import NetState
from springtide.stream.dead_letter_producer import DeadLetterProducer
from springtide.stream.errors import StreamError
from springtide_client.format.tensors import Arrays
from springtide_client.system.clock import Backoff, wall_ms

FLUSH_SECONDS = 2.0  # for dead letters, before publishing is postponed
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes the state of a session every `publish_seconds`: samples learned, or a newer heartbeat.

    Less often while a version costs much or the session is behind: see PublishSchedule.
    """

    def __init__(
        self,
        publish_seconds: float,
        gate: Gate,
        dead_letters: DeadLetterProducer,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: StreamError | None = None  # why the dead letters cannot be delivered
        self._schedule = PublishSchedule(publish_seconds, clock=clock)
        self._gate, self._dead_letters, self._clock = gate, dead_letters, clock
        self._postponed_until = float("-inf")
        self._backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, clock=clock)

    @property
    def reason(self) -> str:
        """Why publishing is postponed; "" if it is not."""
        return "" if self.failure is None else f"dead letters cannot be delivered: {self.failure}"

    def seconds_until_due(self, session: TrainingSession) -> float:
        """Until the next version may be published; not positive once it may."""
        due_at = self._schedule.due_at(is_behind=session.batches.is_behind)
        return max(due_at, self._postponed_until) - self._clock()

    def postpone(self, seconds: float) -> None:
        """Publish no version and execute no command for this long."""
        self._postponed_until = self._clock() + seconds

    def accepts_command(self, session: TrainingSession) -> bool:
        """Return True if a command is pending and can be published with its result. All ranks."""
        return _together(session.ranks, can=self._can_publish(session), wants=self._has_command(session))

    def is_due(self, session: TrainingSession) -> bool:
        """Return True if it is time for a version and there is something to say: samples, or a newer heartbeat.

        All ranks: one that needs a version gets it, else rank 0 decides.
        """
        return _together(session.ranks, can=self._can_publish(session), wants=self._wants_version(session))

    def may_publish(self, session: TrainingSession) -> bool:
        """Return True if, as far as this rank knows, it is time for a version or for a command."""
        return self._can_publish(session) and (self._has_command(session) or self._wants_version(session))

    def _can_publish(self, session: TrainingSession) -> bool:
        return not (session.log.is_stalled or self._clock() < self._postponed_until)

    def _has_command(self, session: TrainingSession) -> bool:
        # the version that carries a command must be exact, and takes the writer of exact states for itself
        return session.commands.has_pending and session.log.is_state_writer_idle

    def _wants_version(self, session: TrainingSession) -> bool:
        if session.must_publish:
            return True
        if not session.ranks.is_first or self.seconds_until_due(session) > 0:
            return False
        if session.state.changed or (not session.log.ends_exact and session.net.is_exact_due):
            return True
        is_heartbeat_due = self._clock() >= self._schedule.heartbeat_at
        return is_heartbeat_due and session.complete_until_ms() > session.state.stream.complete_until_ms

    def publish(self, session: TrainingSession, *, exact: bool = False) -> bool:
        """1. Ask the gate. 2. Deliver dead letters. 3. Take a checkpoint. 4. Append it. 5. Report durable offsets.

        `exact`: a restart must be able to continue from this version; so it must from one that carries a command.
        Returns False, and publishes nothing, if the gate holds the model back or the letters cannot be delivered.
        All ranks, after they have exchanged what they know: what speaks against it on one counts for all.
        """
        state, ranks = session.state, session.ranks
        self._schedule.start()
        progress = session.exchange()
        held = ranks.broadcast(self._gate.judge(state.learner, state.scores, state.samples_trained))
        if held is not None:
            self._gate.held = held
            return False
        if ranks.any_rank(not self._deliver_dead_letters()):
            return False
        state.learner.merge_gathered()
        state.learner.require_same_net()
        started_at = self._clock()
        state.stream.clock.mark_idle(progress.idle, limit_ms=progress.limit_ms)
        failpoint("before a checkpoint")
        carried, net = Arrays(), NetState()  # of ranks above 0: the net is in rank 0's part of the version
        if ranks.is_first:
            must_be_exact = exact or session.must_be_exact or session.commands.has_unpublished
            carried, net = session.net.take(exact=must_be_exact)
        meta, arrays = state.checkpoint(created_ms=wall_ms(), complete_until_ms=progress.complete_until_ms, net=carried)
        failpoint("after a checkpoint")
        version = session.log.append_owned(meta, arrays, net)
        session.net.on_appended(version)
        self._schedule.add_cost(self._clock() - started_at)
        self._gate.on_published(version, state.learner, state.samples_trained)
        session.spill_gc.on_checkpoint(version)
        session.commands.on_published(version)
        session.committed.on_published(version, state.stream.positions)
        self.report_durable(session)
        return True

    def report_durable(self, session: TrainingSession) -> None:
        """Report to Kafka, and acknowledge commands, up to the newest durable version."""
        durable = session.log.durable
        if durable is None:
            return
        session.commands.acknowledge(durable.number)
        if session.committed.advance(durable.number):
            offsets, share = session.committed.offsets, session.ranks.share
            session.source.report_offsets({p: offset for p, offset in offsets.items() if share.holds(p)})

    def _deliver_dead_letters(self) -> bool:
        """Wait a little for the broker: a version must not pass letters that the broker does not have."""
        try:
            self._dead_letters.flush(FLUSH_SECONDS)
        except StreamError as error:
            self.failure = error
            seconds = self._backoff.fail()
            logger.warning("version postponed", extra={"reason": str(error), "seconds": seconds})
            self.postpone(seconds)
            return False
        self.failure = None
        self._backoff.succeed()
        self._postponed_until = float("-inf")  # the reason to wait is gone
        return True


def _together(ranks: Ranks, *, can: bool, wants: bool) -> bool:
    """Return True if all ranks can, and one of them wants to."""
    each = ranks.all_gather_numbers([int(can), int(can and wants)])
    return all(can for can, _ in each) and any(wants for _, wants in each)


# behind, versions would be old anyway, and the time that they cost is missing for catching up
BEHIND_SECONDS = 0.5
# a version without samples only moves the time until which everything is learned
HEARTBEAT_SECONDS = 0.1
# what checkpoints may take of the loop's time
MAX_SHARE, MAX_SHARE_BEHIND = 0.25, 0.05
WEIGHT = 0.2  # of the newest version in the mean cost
MAX_SECONDS = 10.0  # however expensive a version is


class PublishSchedule:
    """Keeps `publish_seconds` between versions, and more where a version is expensive or the trainer is behind.

    The caller passes `is_behind`: as soon as the trainer has caught up, the short interval counts again.
    """

    def __init__(self, publish_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.publish_seconds = publish_seconds
        self.cost_seconds = 0.0  # of one version, in the loop; a mean of the newest ones
        self._clock = clock
        self._started_at = float("-inf")

    def start(self) -> None:
        """Note that a version is being written: the next one counts from now."""
        self._started_at = self._clock()

    def add_cost(self, seconds: float) -> None:
        """Note how long the loop stood still for a version."""
        self.cost_seconds += WEIGHT * (seconds - self.cost_seconds)

    def interval_seconds(self, *, is_behind: bool) -> float:
        """The time between the starts of two versions."""
        affordable = self.cost_seconds / (MAX_SHARE_BEHIND if is_behind else MAX_SHARE)
        return max(self.publish_seconds, BEHIND_SECONDS if is_behind else 0.0, min(affordable, MAX_SECONDS))

    @property
    def heartbeat_at(self) -> float:
        """The time, by the schedule's clock, from which on a version without samples may be written."""
        return self._started_at + max(self.publish_seconds, HEARTBEAT_SECONDS)

    def due_at(self, *, is_behind: bool) -> float:
        """The time, by the schedule's clock, from which on the next version may be written."""
        return self._started_at + self.interval_seconds(is_behind=is_behind)
