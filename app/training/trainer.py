"""The trainer: the loop from stream to log. Each noun of the loop lives elsewhere; the order of things lives here."""

import gc
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from springtide_client.errors import LogError, SpringtideError
from springtide_client.system.backoff import Backoff
from springtide_client.system.clock import wall_ms

from app.processes.signals import StopSignals
from app.training.bootstrap import load_state
from app.training.commands import CommandExecutor
from app.training.committed_offsets import CommittedOffsets
from app.training.health.gate import Gate
from app.training.health.known_good import last_good_before
from app.training.health.repair import mend
from app.training.health.rollback import resolve_hold, roll_back_by_order
from app.training.input.batches import POLL_SECONDS, BatchStream
from app.training.input.skip import Progress
from app.training.input.start_position import StartPosition
from app.training.state.spill_gc import SpillGC
from app.training.state.training_state import TrainingState
from app.training.status.document import document_of
from app.training.status.throughput import ThroughputMeter
from app.training.status.writer import INTERVAL_SECONDS, StatusWriter
from app.version_log.failpoints import failpoint
from app.version_log.read.corruption import lost_commands, take_corruption_report
from app.version_log.write.writer import LogWriter
from embeddings.errors import SpillError
from stream.columns import Batch
from stream.errors import StreamError
from stream.flow.dead_letter_producer import DeadLetterProducer
from stream.source import Source

if TYPE_CHECKING:
    from app.config.load import Config

FLUSH_SECONDS = 2.0  # for dead letters, before a version is put off
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
UNCONFIRMED_BYTES = 64 << 20  # of dead letters; with more of them the stream waits

logger = logging.getLogger(__name__)


class Trainer:
    """Learns from the stream and writes versions until asked to stop, or to the end that the stream has at the start.

    `run` ends with a version of everything learned; a second call is not meant. `stop` may be called from anywhere.
    """

    def __init__(
        self,
        config: "Config",
        *,
        until_end: bool = False,
        take_over: bool = False,
        start: StartPosition | None = None,
    ) -> None:
        """`start`: where in the stream to begin, instead of where the log ends."""
        self.config, self.until_end = config, until_end
        self.signals = StopSignals()
        torch.set_num_threads(config.train.num_threads)
        self.log = LogWriter.open(config.log, schema=config.schema, take_over=take_over)
        try:
            self.status = StatusWriter(config.log.path, self.log.epoch, self.stall_reason)
            self.status.update({"name": config.name, "trainer": "catching_up", "reason": "reading the log back"})
            self.throughput = ThroughputMeter()
            self.gate = Gate(
                config.gate,
                config.train.window_samples,
                look_back=lambda samples: last_good_before(self.log.directory, samples),
            )
            self.stand: Progress | None = (
                None  # how far was learned of what the gate holds, while orders decide about it
            )
            self.corruption = ""  # what somebody says of the log
            self.reason = ""  # why versions are put off
            self.spill_reason = ""  # why rows cannot leave memory, and learning waits
            self._last_commit = self._last_said = float("-inf")
            self._backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
            self.dead_letters = DeadLetterProducer(config.source.kafka_config, f"{config.source.topic}.dead")
            self._begin()
            if start is not None:
                self.state.seek(start.resolve(config.source, self.state.positions))
                self.batches = self._intake()
        except BaseException as error:
            self._fail(error)
            raise

    def _begin(self) -> None:
        """Everything that learning needs, as the log's end has it."""
        config = self.config
        torch.manual_seed(config.train.seed)
        self.state: TrainingState = load_state(config, self.log, num_threads=config.train.num_threads)
        self.commands = CommandExecutor(
            config.log.path, self.log.epoch, self.state, roll_back=lambda order: roll_back_by_order(self, order)
        )
        self.commands.reexecute_lost(lost_commands(self.log.directory, self.state.executed_commands))
        self.spill_gc = SpillGC(self.state.learner.table, self.log.directory, self.state.base_number)
        self.batches = self._intake()
        self.committed = CommittedOffsets(self.state.positions)
        self.gate.reset(self.log.last_number, self.state.learner, self.state.samples_trained)

    def _intake(self) -> BatchStream:
        state = self.state
        return BatchStream(self.config, state.positions, until_end=self.until_end, erasures=state.erasures)

    def reload(self) -> None:
        """Begin anew from the log's end, as a start does: memory and spill empty, no recall in flight."""
        before = self.batches
        before.close()
        self.state.learner.table.close()
        gc.unfreeze()
        try:
            self._begin()
        except SpillError as error:
            raise LogError(f"the log cannot be loaded: {error}") from error  # not to be tried again with half of it
        self.dead_letters.counts.clear()
        self.dead_letters.counts.update(self.state.dead_letters)
        self.batches.start(after=before)
        gc.collect()
        gc.freeze()

    def restart_source(self) -> None:
        """From where learning is: what was read ahead is dropped."""
        before = self.batches
        before.close()
        self.batches = self._intake()
        self.batches.start(after=before)

    @property
    def source(self) -> Source:
        """The stream as it is read."""
        return self.batches.source

    def stop(self) -> None:
        """Commit what is learned and end."""
        self.signals.stop()

    def run(self) -> dict[str, Any]:
        """Learn until asked to stop; a pass of the loop is at most one batch. Returns the final status."""
        try:
            with self.signals:
                self.open()
                while not self.finished or not self.commit(final=True):
                    if self.gate.held is not None:
                        resolve_hold(self)
                    else:
                        self.advance()
                    self.report_status()
                    if self.corruption:
                        mend(self)
            return self.close()
        except BaseException as error:
            self._fail(error)
            raise

    def open(self) -> None:
        """Begin to read."""
        self.batches.start()
        # what lives by now lives to the end: the collector need not walk it in every batch
        gc.collect()
        gc.freeze()
        self.report_status()

    @property
    def finished(self) -> bool:
        """Whether somebody asked to stop, or the end that was asked for is learned."""
        return self.signals.stopping or (self.gate.held is None and self.batches.finished)

    def advance(self) -> None:
        """1. Take what the stream has, while there is room for it. 2. Learn. 3. Execute orders. 4. Publish."""
        has_room = not (self.log.is_full or self.log.is_stalled)
        if not has_room or self.dead_letters.unacknowledged_bytes > UNCONFIRMED_BYTES:
            self.signals.wait(POLL_SECONDS)
        else:
            until_commit = self._last_commit + self.config.log.publish_seconds - time.monotonic()
            self.batches.poll(until_commit if until_commit > 0 else POLL_SECONDS)
        in_haste = time.monotonic() - self._last_commit >= self.config.log.publish_seconds
        if has_room and (batch := self.batches.take(allow_partial=in_haste)) is not None:
            self.learn(batch)  # one without samples moves positions too
        if self.has_pending_command and self.commit():
            self.retry_while_spill_full(lambda: self.commands.execute())  # right after a cut: what it moves finds room
            if any(forgetting not in self.batches.erasures for forgetting in self.state.erasures):
                self.restart_source()  # what waits was decoded with what is to be hidden
            self.source.reset_emitted_strings()  # of what was forgotten and comes again
        if self.is_due:
            self.commit()

    def learn(self, batch: Batch) -> None:
        """1. Make room for the rows it may evict. 2. Send its dead letters. 3. Learn it, with a look at the next."""
        if self.state.learner.needs_checkpoint(batch):
            while not self.commit():
                if self.gate.held is not None or self.signals.wait(POLL_SECONDS):
                    return  # its positions are not passed: whoever goes on from the log learns it
        self.dead_letters.send(batch.dead_letters)
        upcoming, limit_ms = self.batches.peek(), self.limit_ms
        self.retry_while_spill_full(lambda: self.state.learn(batch, upcoming=upcoming, limit_ms=limit_ms))

    def retry_while_spill_full(self, do: Callable[[], None]) -> None:
        """Do it, again and again while the spill takes no rows. Asked to stop, leave it to the next trainer."""
        while True:
            try:
                do()
                self.spill_reason = ""
                return
            except SpillError as error:
                if str(error) != self.spill_reason:
                    logger.warning("learning waits for the spill", extra={"reason": str(error)})
                self.spill_reason = str(error)
            if self.is_due:
                self.commit()
            self.report_status()
            if self.signals.wait(POLL_SECONDS):
                return

    @property
    def limit_ms(self) -> int:
        """The event clock goes no further."""
        return wall_ms() + int(self.config.source.max_future_seconds * 1000)

    @property
    def has_pending_command(self) -> bool:
        """Whether an order waits; while versions are put off it waits on."""
        return time.monotonic() > self._last_commit and not self.log.is_stalled and self.commands.has_pending

    @property
    def is_due(self) -> bool:
        """Whether it is time for a version, and there is something to tell."""
        if self.log.is_stalled or time.monotonic() - self._last_commit < self.config.log.publish_seconds:
            return False
        return self.state.changed or self.complete_until_ms() > self.state.complete_until_ms

    def complete_until_ms(self) -> int:
        """The wall time at which everything then readable is learned."""
        return self.source.complete_until_ms(self.state.positions) or 0

    def commit(self, *, final: bool = False) -> bool:
        """1. The gate lets it pass. 2. The broker has every dead letter. 3. Cut. 4. Append. 5. Report what is durable.

        False: put off, or held by the gate.
        """
        self._last_commit = time.monotonic()
        if final and not self.state.changed:
            return True
        if self.gate.judge(self.state.learner, self.state.scores, self.state.samples_trained) is not None:
            return final and self.signals.stopping
        try:
            self.dead_letters.flush(FLUSH_SECONDS)
        except StreamError as error:
            # a version must not pass letters that the broker does not have: learning goes on, publishing waits
            self.reason = f"dead letters cannot be delivered: {error}"
            pause = self._backoff.fail()
            logger.warning("version postponed", extra={"reason": str(error), "seconds": pause})
            self.postpone(pause)
            if final and self.until_end:
                raise
            return final
        self._backoff.succeed()
        self.reason = ""
        self.state.clock.mark_idle(
            self.batches.idle_partitions(self.state.positions, self.state.clock), limit_ms=self.limit_ms
        )
        failpoint("before a checkpoint")
        meta, arrays = self.state.checkpoint(created_ms=wall_ms(), complete_until_ms=self.complete_until_ms())
        failpoint("after a checkpoint")
        version = self.log.append_owned(meta, arrays)
        self.gate.on_published(version, self.state.learner, self.state.samples_trained)
        self.spill_gc.on_checkpoint(version)
        self.commands.on_published(version)
        self.committed.on_published(version, self.state.positions)
        self._report_durable()
        return True

    def wait_until_durable(self) -> bool:
        """Everything appended is durable. A disk that takes nothing is waited for, visibly; False: asked to stop."""
        while self.log.is_writing:
            self.report_status()
            if self.signals.stopping and self.log.is_stalled:
                return False
            time.sleep(POLL_SECONDS)
        self.log.sync()
        return True

    def postpone(self, seconds: float) -> None:
        """No version for so long, and no order."""
        self._last_commit = time.monotonic() + seconds

    def report_status(self) -> None:
        """The status, once a second."""
        now = time.monotonic()
        if now - self._last_said >= INTERVAL_SECONDS:
            self._last_said = now
            self._report_durable()
            self.corruption = self.corruption or take_corruption_report(self.config.log.path, self.log.epoch)
            if self.spill_gc.map_newest_base(self.log.last_number):
                self.source.reset_emitted_strings()  # it has let go of those of dead rows
            self.throughput.record(self.state.samples_trained)
            self.status.update(document_of(self))

    def stall_reason(self) -> dict[str, str]:
        """What a step waits for at the moment, for whoever asks beside it: it may be a while until the step says so."""
        reason = self.state.learner.table.stall_reason() if hasattr(self, "state") else ""
        return {"trainer": "waiting", "reason": reason} if reason else {}

    def close(self) -> dict[str, Any]:
        """Everything durable, everything closed; returns the final status."""
        gc.unfreeze()
        self.log.sync()
        self._report_durable()
        reason = "ended" if self.gate.held is None else f"ended while the gate held back: {self.gate.held.detail}"
        final = document_of(self) | {
            "clean_end": True,
            "trainer": "stopped",
            "reason": reason,
            "samples_per_second": 0.0,
        }
        self._release()
        return self.status.close(lambda: final)

    def _report_durable(self) -> None:
        if (durable := self.log.durable) is None:
            return
        self.commands.acknowledge(durable.number)
        if self.committed.advance(durable.number):
            self.source.report_offsets(self.committed.offsets)

    def _release(self) -> None:
        """Each part is given back even where another fails."""
        parts = [getattr(self, "intake", None), getattr(self, "dead_letters", None)]
        table = self.state.learner.table if hasattr(self, "state") else None
        for part in (*parts, table, self.log):
            try:
                if part is not None:
                    part.close()
            except (SpringtideError, OSError) as error:
                logger.warning("not closed properly", extra={"reason": str(error)})

    def _fail(self, error: BaseException) -> None:
        """The last word of a trainer that could not go on."""
        said: Mapping[str, Any] = {"trainer": "failed", "reason": " ".join(str(error).split()) or type(error).__name__}
        if hasattr(self, "status"):
            self.status.close(lambda: {**self.status.document, **said, "samples_per_second": 0.0})
        self._release()
