"""The trainer's loop, from the stream to the log. It owns its parts and decides their order; the work is theirs."""

import gc
import logging
import time
from collections.abc import Callable

import torch

from springtide.app.errors import UserError
from springtide.app.processes.signals import StopSignals
from springtide.app.training.batches import POLL_SECONDS
from springtide.app.training.config import TrainerConfig
from springtide.app.training.gate import Gate, last_good_before
from springtide.app.training.publisher import Publisher, PublishSchedule
from springtide.app.training.ranks.loop_decision import NEVER, LoopDecision, RankVote
from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.rollback import RollbackController
from springtide.app.training.session import TrainingSession
from springtide.app.training.start_position import (
    StartPosition,
    require_keys_in_one_partition,
    require_same_join,
    require_same_topic,
)
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.status import StatusWriter, TrainerStatusReporter
from springtide.app.version_log.read.corruption import find_corruption, take_corruption_report
from springtide.app.version_log.trainer_status import TrainerStatus, read_status, successor
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.columns import Batch
from springtide.stream.dead_letter_producer import DeadLetterProducer
from springtide_client.errors import SpringtideError

MAX_UNACKNOWLEDGED_BYTES = 64 << 20  # of dead letters; beyond it the stream waits

logger = logging.getLogger(__name__)


class Trainer:
    """Learns from the stream and publishes versions until it is stopped, or up to the end that the stream has now.

    `session` is what was loaded from the log: another object after a rollback or a repair.
    `run` ends with a version of everything learned and is called once. `stop` may be called from any thread.
    """

    def __init__(
        self,
        config: TrainerConfig,
        *,
        until_end: bool = False,
        take_over: bool = False,
        start: StartPosition | None = None,
        ranks: Ranks | None = None,
        owns_process: bool = False,
    ) -> None:
        """Read the log back. `start`: where in the stream to begin, instead of where the log ends.

        `ranks`: those that learn together, each in its own process; by default this one alone. The trainer closes it.
        `owns_process`: this process does nothing else, so its garbage collector may pass over what lives to the end.
        """
        self.config, self.until_end, self.ranks = config, until_end, ranks or Ranks()
        if config.join is not None and self.ranks.num_ranks > 1:
            require_keys_in_one_partition(config.join)
        self._owns_process = owns_process
        if owns_process:
            gc.freeze()  # what is imported: the collection after the log is read looks only at what that left behind
        self.signals = StopSignals()
        self.decision = LoopDecision()
        self.corruption = ""  # as a reader of the log has reported it
        # of the parts that are open: in a failing `__init__` perhaps not all are
        self._on_failure: list[Callable[[BaseException], object]] = []
        self._on_end: list[Callable[[], object]] = []
        try:
            torch.set_num_threads(config.train.num_threads)
            self._log_ranks = self.ranks.of_log()
            self.log = LogWriter.open(config.log, schema=config.schema, take_over=take_over, ranks=self._log_ranks)
            self._on_end.append(lambda: self.log.close())
            self._open(start)
        except BaseException as error:
            self._fail(error)
            raise

    def _open(self, start: StartPosition | None) -> None:
        """Open all parts but the log, and read that back."""
        config = self.config
        previous = read_status(config.log.path) or TrainerStatus()
        self.status = StatusWriter(config.log.path, self.log.epoch, writes=self.ranks.is_first)
        self._on_failure.append(self.status.fail)
        self.dead_letters = DeadLetterProducer(config.source.kafka_config, f"{config.source.topic}.dead")
        self._on_end.append(self.dead_letters.close)
        self.gate = Gate(
            config.gate,
            config.train.window_samples,
            look_back=lambda samples: last_good_before(self.log.directory, samples),
        )
        schedule = PublishSchedule(config.log.publish_seconds, config.log.publish_bytes)
        self.publisher = Publisher(schedule, self.gate, self.dead_letters)
        self.rollback = RollbackController(
            config,
            self.gate,
            self.dead_letters,
            self.publisher,
            self.status,
            self.signals,
            owner=self,
            until_end=self.until_end,
        )
        self.reporter = TrainerStatusReporter(
            config, self.gate, self.status, lambda: self.publisher.status(self.session)
        )
        # counters continue from the previous trainer's: a 0 would look like a reset in a graph
        self.status.update(successor(previous, name=config.name, reason="reading the log back"))
        session = TrainingSession.load(
            config, self.log, until_end=self.until_end, roll_back=self.rollback.execute, ranks=self.ranks
        )
        self._adopt(session)
        self._on_end += [lambda: self.state.learner.table.close(), lambda: self.session.batches.close()]
        if start is None:
            require_same_topic(config.source, self.state.stream.positions)
            require_same_join(config.source, config.join, self.state.stream)
        elif config.join is not None:
            raise UserError(
                "--from-offset and --from-timestamp: a joined stream goes on where its log ends; to begin "
                "elsewhere, set another [log] path"
            )
        else:
            self.session.seek(start)

    @property
    def state(self) -> TrainingState:
        """Everything learned so far."""
        return self.session.state

    def stop(self) -> None:
        """Publish what is learned and end."""
        self.signals.stop()

    def run(self) -> TrainerStatus:
        """Learn until the end; one pass of the loop is at most one batch. Returns the final status."""
        try:
            with self.signals, self.ranks.as_rank_lost():
                self.start()
                while not self.finished or not self.publish_last():
                    if self.gate.held is not None:
                        self.rollback.resolve_hold()
                    else:
                        self.run_once()
                    self.report_status()
                    if self.decision.is_corrupt:
                        self.repair()
                return self.close()
        except BaseException as error:
            self._fail(error)
            raise

    def start(self) -> None:
        """Begin to read the stream."""
        self.session.start()
        self._freeze_heap()

    @property
    def finished(self) -> bool:
        """True if a stop was requested, or if everything up to the requested end is learned."""
        return self.decision.is_stopping or (self.gate.held is None and self.decision.is_finished)

    def run_once(self) -> None:
        """1. Take what the stream has, if there is room for it. 2. Vote. 3. Learn. 4. Execute commands. 5. Publish."""
        log, batches, publisher = self.log, self.session.batches, self.publisher
        has_room = not (log.is_full or log.is_stalled)
        if not has_room or self.dead_letters.unacknowledged_bytes > MAX_UNACKNOWLEDGED_BYTES:
            self.signals.wait(POLL_SECONDS)
        else:
            seconds = publisher.seconds_until_due(self.session) if self.session.state.unpublished.has_changes else 0.0
            batches.poll(min(self.decision.max_poll_seconds, seconds if seconds > 0 else POLL_SECONDS))
        if has_room:
            batches.prepare()
        decision = self.vote(has_room=has_room)
        if decision.must_learn and (not decision.num_rows or self._has_room_for(batches.prepare_rest())):
            batch = batches.take_prepared()  # one without samples moves positions too
            self.learn(Batch.empty(self.config.schema.recorded) if batch is None else batch)
        if not decision.may_publish:
            return
        accepts_command, is_due = publisher.decide(self.session)
        if accepts_command:
            if self.publish():
                self.execute_commands()
        elif is_due:
            self.publish()

    def vote(self, *, has_room: bool = False) -> LoopDecision:
        """Vote on what all ranks do next; `has_room`: for more to learn. All ranks."""
        session, batches, stream = self.session, self.session.batches, self.state.stream
        ready, is_finished = batches.ready, batches.finished
        earliest_ms, limit_ms, may_publish = NEVER, NEVER, False
        if self.ranks.num_ranks > 1:  # else each batch moves the clock, and every pass may publish
            may_publish = self.publisher.may_publish(session)
            watermark_ms, limit_ms = stream.clock.earliest_ms(stream.share), session.max_event_ms()
            earliest_ms = NEVER if watermark_ms is None else watermark_ms
        own = RankVote(
            num_rows=0 if ready is None else len(ready),
            is_due=ready is not None,
            has_room=has_room,
            holds_up=batches.is_fixed and ready is None and not is_finished,
            is_stopping=self.signals.stopping,
            is_finished=is_finished,
            may_publish=may_publish,
            earliest_ms=earliest_ms,
            limit_ms=limit_ms,
            is_report_due=time.monotonic() >= self.reporter.due_at,
            has_command=self.gate.held is not None and session.commands.has_pending,
            is_corrupt=bool(self.corruption),
        )
        self.decision = LoopDecision.on(own, self.ranks)
        if self.decision.clock_ms is not None:
            stream.clock.advance_to(self.decision.clock_ms)
        return self.decision

    def learn(self, batch: Batch) -> None:
        """1. Send its dead letters. 2. Learn it, for whose rows there is room; prefetch for the next."""
        self.dead_letters.send(batch.dead_letters)
        self.session.note_lag()
        self.reporter.values.add(batch)
        next_batch, limit_ms = self.session.batches.peek(), self.session.max_event_ms()
        has_samples = self.decision.num_rows > 0
        self.state.learn(batch, next_batch=next_batch, limit_ms=limit_ms, has_samples=has_samples)

    def _has_room_for(self, batch: Batch | None) -> bool:
        """Return True if versions and spill can take the rows that the batches of all ranks may evict, now.

        Else the batch stays prepared: the loop goes on with commands, versions and the status, and asks again. A lookup
        that fails all the same ends the process: the next one continues from the log.
        """
        learner = self.state.learner
        batch = Batch.empty(self.config.schema.recorded) if batch is None else batch
        counts = learner.count_keys(batch)
        if counts.need_checkpoint and not self.publish():
            self.signals.wait(POLL_SECONDS)
            return False
        return learner.has_room(counts, POLL_SECONDS)

    def execute_commands(self) -> None:
        """Execute all that wait. Call it right after a checkpoint: the rows that they evict find room."""
        self.session.commands.execute()
        session = self.session  # a rollback has replaced it
        if any(erasure not in session.batches.erasures for erasure in session.state.stream.erasures):
            session.restart_source()
        session.source.reset_emitted_strings()  # an erased id that comes again needs its string again
        session.state.forget_strings()

    def publish(self) -> bool:
        """Publish a version; False if the gate or undelivered dead letters prevent it."""
        return self.publisher.publish(self.session)

    def publish_last(self) -> bool:
        """Publish what is left at the end; returns True if the trainer may end, even if that was not possible."""
        is_published = not self.state.changed and self.state.is_scored
        if self.ranks.is_first:  # the others do not write the net
            is_published &= self.log.ends_exact and self.session.net.is_shown
        is_published = not self.ranks.any_rank(not is_published)
        if is_published or self.publisher.publish(self.session, exact=True):
            return True
        if self.gate.held is not None:
            return self.decision.is_stopping
        if self.until_end:
            self.ranks.raise_together(self.publisher.failure, self.publisher.reason)
        return True

    def wait_until_durable(self) -> bool:
        """Wait until everything appended is durable, however long the disk takes; False if a stop was requested."""
        while self.log.is_writing:
            if self.signals.stopping and self.log.is_stalled:
                return False
            time.sleep(POLL_SECONDS)
        self.log.sync()
        return True

    def reload(self) -> None:
        """Continue from the end of the log; if that is not exact, under a new epoch from the newest exact version."""
        if self._owns_process:
            gc.unfreeze()
        if not self.ranks.broadcast(self.log.ends_exact):
            self._open_next_epoch()
        self._adopt(self.session.reload(self.log, self.rollback.execute))
        self.decision = self.decision._replace(is_finished=False)  # what was learned is to be learned again
        self._freeze_heap()

    def repair(self) -> None:
        """Verify the reported corruption; if it is real, continue under a new epoch from before it.

        No reader can follow past it, and no base can be built of what lies behind it: what is lost is learned again.
        """
        reason, self.corruption = self.corruption, ""
        is_durable = self.wait_until_durable()
        self.ranks.barrier()  # however long the disk of one takes
        if self.ranks.any_rank(not is_durable):
            return
        if self.ranks.on_rank0(lambda: self._is_corrupt(reason)):
            self._open_next_epoch()
            self.reload()

    def _is_corrupt(self, report: str) -> bool:
        """Verify a corruption report; if it is right, the next epoch seals what is readable. All is durable by now."""
        assert self.log.last_encoded is not None
        reason = find_corruption(self.log.directory, self.log.last_encoded)
        if not reason:
            logger.warning("log corruption reported, but verification found none", extra={"reason": report})
            return False
        logger.error("the log is corrupt: continuing under a new epoch from before it", extra={"reason": reason})
        return True

    def report_status(self) -> None:
        """Once a second: report what is durable, look for a new base and for corruption, and update the status.

        Of several ranks all do it together, in the passes of the loop that rank 0 chooses.
        """
        if not self.decision.is_report_due:
            return
        self.decision = self.decision._replace(is_report_due=False)
        session = self.session
        self.publisher.report_durable(session)
        if self.ranks.is_first:
            self.corruption = self.corruption or take_corruption_report(self.config.log.path, self.log.epoch)
        if session.spill_gc.map_newest_base(self.log.last_number):
            session.source.reset_emitted_strings()  # the new base holds no strings of deleted rows
        self.reporter.report(session, stall_reason=self._stall_reason)

    def _freeze_heap(self) -> None:
        """Keep the garbage collector from looking, with every batch, at what lives to the end anyway."""
        if self._owns_process:
            gc.collect()
            gc.freeze()

    def _open_next_epoch(self) -> None:
        self.log.close()
        self.log = LogWriter.open(self.config.log, schema=self.config.schema, ranks=self._log_ranks)
        self.status.set_epoch(self.log.epoch)

    def close(self) -> TrainerStatus:
        """Make everything durable and close it; returns the final status."""
        if self._owns_process:
            gc.unfreeze()
        self.log.sync()
        self.ranks.barrier()  # the writers of all ranks are needed until everything is durable
        self.publisher.report_durable(self.session)
        status = self.reporter.last_status(self.session, stall_reason=self._stall_reason)
        self._release()
        self.ranks.leave_together()
        return self.status.close(status)

    @property
    def _stall_reason(self) -> str:
        return self.session.stall_reason() or self.publisher.reason or self.log.stall_reason

    def _adopt(self, session: TrainingSession) -> None:
        self.session = session
        self.gate.reset(self.log.last_number, session.state.learner, session.state.samples_trained)
        self.status.stall_reason = lambda: session.stall_reason() or self.log.stall_reason

    def _fail(self, error: BaseException) -> None:
        """Tell the others and the status, and close what is open."""
        has_others = self.ranks.leave(error)
        for report in self._on_failure:
            report(error)
        if has_others and self._on_end:
            self.log.abandon("this rank has ended")
        self._release()

    def _release(self) -> None:
        """Close every part that is open, the newest first, even if closing another one fails."""
        for close in reversed(self._on_end):
            try:
                close()
            except (SpringtideError, OSError) as error:
                logger.warning("not closed properly", extra={"reason": str(error)})
