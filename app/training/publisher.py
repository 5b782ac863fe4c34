"""Writes versions: when one is due, whether the gate and the broker let it pass, and which offsets are durable."""

import logging
import time
from collections.abc import Callable

from springtide_client.system.backoff import Backoff
from springtide_client.system.clock import wall_ms

from app.training.health.gate import Gate
from app.training.publish_schedule import PublishSchedule
from app.training.session import TrainingSession
from app.version_log.failpoints import failpoint
from stream.errors import StreamError
from stream.flow.dead_letter_producer import DeadLetterProducer

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
        """Return True if a command is pending and can be published with its result."""
        if session.log.is_stalled or self._clock() < self._postponed_until:
            return False
        # the version that carries a command must be exact, and takes the writer of exact states for itself
        return session.commands.has_pending and session.log.is_state_writer_idle

    def is_due(self, session: TrainingSession) -> bool:
        """Return True if it is time for a version and there is something to say: samples, or a newer heartbeat."""
        if session.log.is_stalled or self._clock() < self._postponed_until:
            return False
        if session.must_publish:
            return True
        if self.seconds_until_due(session) > 0:
            return False
        if session.state.changed or (not session.log.ends_exact and session.net.is_exact_due):
            return True
        is_heartbeat_due = self._clock() >= self._schedule.heartbeat_at
        return is_heartbeat_due and session.complete_until_ms() > session.state.stream.complete_until_ms

    def publish(self, session: TrainingSession, *, exact: bool = False) -> bool:
        """1. Ask the gate. 2. Deliver dead letters. 3. Take a checkpoint. 4. Append it. 5. Report durable offsets.

        `exact`: a restart must be able to continue from this version; so it must from one that carries a command.
        Returns False, and publishes nothing, if the gate holds the model back or the letters cannot be delivered.
        """
        state = session.state
        self._schedule.start()
        if self._gate.judge(state.learner, state.scores, state.samples_trained) is not None:
            return False
        if not self._deliver_dead_letters():
            return False
        started_at = self._clock()
        idle = session.batches.idle_partitions(state.stream.positions, state.stream.clock)
        state.stream.clock.mark_idle(idle, limit_ms=session.max_event_ms())
        failpoint("before a checkpoint")
        carried, net = session.net.take(exact=exact or session.must_be_exact or session.commands.has_unpublished)
        complete_until_ms = session.complete_until_ms()
        meta, arrays = state.checkpoint(created_ms=wall_ms(), complete_until_ms=complete_until_ms, net=carried)
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
            session.source.report_offsets(session.committed.offsets)

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
