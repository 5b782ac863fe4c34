"""Writes versions: when one is due, whether the gate and the broker let it pass, and which offsets are durable."""

import logging
import time
from collections.abc import Callable
from math import inf

from springtide.app.training.gate import Gate
from springtide.app.training.session import TrainingSession
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.trainer_status import PublishStatus
from springtide.app.version_log.write.writer import LogWriter, NetState
from springtide.stream.dead_letter_producer import DeadLetterProducer
from springtide.stream.errors import StreamError
from springtide_client.format.tensors import Arrays
from springtide_client.system.clock import Backoff, wall_ms

FLUSH_SECONDS = 2.0  # for dead letters, before publishing is postponed
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0

logger = logging.getLogger(__name__)

# what versions may take of a core while the trainer is caught up, and behind: there they would be old anyway, and the
# time that they cost is missing for catching up
SHARE, BEHIND_SHARE = 0.2, 0.05
# a version costs its followers too, and closer ones would show a sample no sooner: a fetch waits 5 ms
MIN_SECONDS = 0.01
MAX_SECONDS = 10.0  # behind, however expensive a version is
SCORES_SECONDS = 0.5  # how old the scores may be that a version shows: finding them takes longer than all the rest
# a version without samples only moves the time until which everything is learned
HEARTBEAT_SECONDS = 0.1
WEIGHT = 0.2  # of the newest version in the means


class PublishSchedule:
    """Spaces versions by what they cost: interval = cost / share of a core, `publish_seconds` at most.

    The cost of a version is the processor time of the loop and of the log's writer, an exponential mean. A version's
    bytes count too: `[log] publish_bytes` a second. While the caller says that the trainer is behind,
    `publish_seconds` is the least interval, and the share is smaller; as soon as it has caught up, the short interval
    counts again. What is learned does not depend on the interval: see the decisions.
    """

    def __init__(
        self, publish_seconds: float, publish_bytes: float = inf, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.publish_seconds, self.publish_bytes = publish_seconds, publish_bytes
        self.cost_seconds = 0.0  # of one version
        self.num_bytes = 0.0  # of one version
        self._clock = clock
        self._started_at = float("-inf")
        self._written: tuple[float, int] | None = None  # processor time of the log's writer, and its bytes, so far

    def start(self) -> None:
        """Note that a version is being written: the next one counts from now."""
        self._started_at = self._clock()

    def add(self, loop_seconds: float, log: LogWriter) -> None:
        """Note what a version has cost the loop, and what the log has cost since the last one."""
        before, self._written = self._written, (log.cpu_seconds, log.appended_bytes)
        if before is not None:  # the writer is a version behind at most
            seconds, num_bytes = self._written[0] - before[0], self._written[1] - before[1]
            self.add_cost(loop_seconds + max(seconds, 0.0), max(num_bytes, 0))  # a new epoch's begin at 0

    def add_cost(self, seconds: float, num_bytes: int = 0) -> None:
        """Note the cost of a version."""
        self.cost_seconds += WEIGHT * (seconds - self.cost_seconds)
        self.num_bytes += WEIGHT * (num_bytes - self.num_bytes)

    def interval_seconds(self, *, is_behind: bool) -> float:
        """The time between the starts of two versions."""
        share = BEHIND_SHARE if is_behind else SHARE
        seconds = max(MIN_SECONDS, self.cost_seconds / share, self.num_bytes / self.publish_bytes)
        return max(self.publish_seconds, min(seconds, MAX_SECONDS)) if is_behind else min(self.publish_seconds, seconds)

    def status(self, *, is_behind: bool) -> PublishStatus:
        """Return its part of the trainer's status."""
        seconds = round(self.interval_seconds(is_behind=is_behind), 4)
        return PublishStatus(seconds, round(self.cost_seconds, 5), round(self.num_bytes))

    @property
    def heartbeat_at(self) -> float:
        """The time, by the schedule's clock, from which on a version without samples may be written."""
        return self._started_at + max(self.publish_seconds, HEARTBEAT_SECONDS)

    def due_at(self, *, is_behind: bool) -> float:
        """The time, by the schedule's clock, from which on the next version may be written."""
        return self._started_at + self.interval_seconds(is_behind=is_behind)


class Publisher:
    """Publishes the state of a session when it has changed: samples were learned, or a newer heartbeat came.

    How often follows what versions cost, and whether the session is behind: see PublishSchedule.
    """

    def __init__(
        self,
        schedule: PublishSchedule,
        gate: Gate,
        dead_letters: DeadLetterProducer,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: StreamError | None = None  # why the dead letters cannot be delivered
        self.schedule = schedule
        self._gate, self._dead_letters, self._clock = gate, dead_letters, clock
        self._postponed_until = float("-inf")
        self._backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, clock=clock)

    @property
    def reason(self) -> str:
        """Why publishing is postponed; "" if it is not."""
        return "" if self.failure is None else f"dead letters cannot be delivered: {self.failure}"

    def seconds_until_due(self, session: TrainingSession) -> float:
        """Until the next version may be published; not positive once it may."""
        due_at = self.schedule.due_at(is_behind=session.batches.is_behind)
        return max(due_at, self._postponed_until) - self._clock()

    def status(self, session: TrainingSession) -> PublishStatus:
        """Return how often versions are published, for the trainer's status."""
        return self.schedule.status(is_behind=session.batches.is_behind)

    def postpone(self, seconds: float) -> None:
        """Publish no version and execute no command for this long."""
        self._postponed_until = self._clock() + seconds

    def decide(self, session: TrainingSession) -> tuple[bool, bool]:
        """Return whether a command waits that can be published with its result, and whether a version is due.

        All ranks: one that needs a version gets it, else rank 0 decides.
        """
        each = session.ranks.all_gather_numbers(list(map(int, self._own_decision(session))))
        can, has_command, wants_version = zip(*each, strict=True)
        return all(can) and any(has_command), all(can) and any(wants_version)

    def may_publish(self, session: TrainingSession) -> bool:
        """Return True if, as far as this rank knows, it is time for a version or for a command."""
        _, has_command, wants_version = self._own_decision(session)
        return has_command or wants_version

    def _own_decision(self, session: TrainingSession) -> tuple[bool, bool, bool]:
        """Return whether this rank can publish, and if so whether it has a command or wants a version."""
        log = session.log
        if log.is_stalled or self._clock() < self._postponed_until:
            return False, False, False
        # the version that carries a command must be exact, and takes the writer of exact states for itself
        has_command = session.commands.has_pending and log.states.is_idle
        return True, has_command, self._wants_version(session)

    def _wants_version(self, session: TrainingSession) -> bool:
        """Return True if the state has changed, by samples or a heartbeat, and a version is due or must be written."""
        state, log = session.state, session.log
        has_changed, is_full = state.unpublished.has_changes, log.is_full
        if state.must_expire or (is_full and (must_be_exact(log) or log.must_tell_durable)):
            return True
        if has_changed and state.max_unpublished_bytes > log.budget.max_version_bytes // session.ranks.num_ranks:
            return True
        if not session.ranks.is_first:
            return False
        if has_changed or (not log.ends_exact and session.net.is_exact_due):
            return self.seconds_until_due(session) <= 0
        if self._clock() < self.schedule.heartbeat_at or self.seconds_until_due(session) > 0:
            return False
        return session.complete_until_ms() > state.stream.complete_until_ms

    def publish(self, session: TrainingSession, *, exact: bool = False) -> bool:
        """1. Ask the gate. 2. Deliver dead letters. 3. Take a checkpoint. 4. Append it. 5. Report durable offsets.

        `exact`: a restart must be able to continue from this version; so it must from one that carries a command.
        Returns False, and publishes nothing, if the gate holds the model back or the letters cannot be delivered.
        All ranks, after they have exchanged what they know: what speaks against it on one counts for all.
        """
        state, ranks, log = session.state, session.ranks, session.log
        self.schedule.start()
        # of several ranks it is time: they wait for each other
        seconds = time.thread_time if ranks.num_ranks == 1 else time.monotonic
        began = seconds()
        progress = session.exchange()
        held = ranks.broadcast(self._gate.judge(state.learner, state.scores, state.samples_trained))
        if held is not None:
            self._gate.held = held
            return False
        if ranks.any_rank(not self._deliver_dead_letters()):
            return False
        state.learner.merge_gathered()
        state.learner.require_same_net()
        state.stream.clock.mark_idle(progress.idle, limit_ms=progress.limit_ms)
        failpoint("before a checkpoint")
        carried, net = Arrays(), NetState()  # of ranks above 0: the net is in rank 0's part of the version
        if ranks.is_first:
            is_exact = exact or must_be_exact(log) or session.commands.has_unpublished
            carried, net = session.net.take(exact=is_exact)
        meta, arrays = state.checkpoint(
            created_ms=wall_ms(),
            complete_until_ms=progress.complete_until_ms,
            net=carried,
            scores_seconds=0.0 if exact else SCORES_SECONDS,
        )
        failpoint("after a checkpoint")
        version = log.append_owned(meta, arrays, net)
        session.net.on_appended(version)
        self._gate.on_published(version, state.learner, state.samples_trained)
        session.spill_gc.on_checkpoint(version)
        session.commands.on_published(version)
        session.committed.on_published(version, state.stream.positions)
        self.report_durable(session)
        self.schedule.add(seconds() - began, log)
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


def must_be_exact(log: LogWriter) -> bool:
    """Return True if only a version with the exact state of the net lets the compactor make room for more."""
    return not log.ends_exact and log.states.is_idle and log.is_full
