"""The trainer: the loop from stream to log. Each noun of the loop lives elsewhere; the order of things lives here."""

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from springtide_client.errors import SpringtideError

from app.training.generations import Generations
from app.training.log_start import start_state
from app.training.order_desk import OrderDesk
from app.training.rates import Rate
from app.training.report import SECONDS, StatusKeeper, wall_ms
from app.training.status_document import document_of
from app.training.stop_signals import StopSignals
from app.versions.fault_points import reach
from app.versions.writer import LogWriter
from embeddings.errors import SpillError
from stream.batcher import Batcher
from stream.columns import Batch, Partition
from stream.dead_letters import DeadLetters
from stream.errors import StreamError, WaitingError
from stream.source import Source

if TYPE_CHECKING:
    from app.config import Config

ABSENT_SECONDS = 60.0  # how long --until-end waits for a broker and a topic
POLL_SECONDS = 0.05
FLUSH_SECONDS = 2.0  # for dead letters, before a version is put off
FIRST_PUT_OFF_SECONDS, LONGEST_PUT_OFF_SECONDS = 1.0, 30.0
UNCONFIRMED_BYTES = 64 << 20  # of dead letters; with more of them the stream waits

logger = logging.getLogger(__name__)


class Trainer:
    """Learns from the stream and writes versions until asked to stop, or to the end that the stream has at the start.

    `run` ends with a version of everything learned; a second call is not meant. `stop` may be called from anywhere.
    """

    def __init__(self, config: "Config", *, until_end: bool = False, take_over: bool = False) -> None:
        self.config, self.until_end = config, until_end
        self.signals = StopSignals()
        num_threads = config.train.num_threads
        torch.set_num_threads(num_threads)
        torch.manual_seed(config.train.seed)
        self.log = LogWriter.open(config.log, schema=config.schema, take_over=take_over)
        try:
            self.status = StatusKeeper(config.log.path, self.log.epoch)
            self.status.say({"name": config.name, "trainer": "catching_up", "reason": "reading the log back"})
            self.state = start_state(config, self.log, num_threads=num_threads)
        except BaseException as error:
            self._fail(error)
            raise
        source = replace(config.source, group=config.source.group or f"springtide-{config.name}")
        self.source = Source(source, config.schema, self.state.positions)
        self.orders = OrderDesk(config.log.path, self.log.epoch, self.state)
        self.generations = Generations(self.state.learner.table, self.log.directory, self.state.base_number)
        self.upcoming: Batch | None = None  # taken from the batcher, not learned yet
        self.batcher = Batcher(config.train.batch_size, config.train.max_wait_seconds)
        self.dead_letters = DeadLetters(
            config.source.connection, f"{config.source.topic}.dead", counts=self.state.dead_letters
        )
        self.rate = Rate()
        self.reason = ""  # why versions are put off
        self.spill_reason = ""  # why rows cannot leave memory, and learning waits
        self.committed: dict[Partition, int] = {p: position.offset for p, position in self.state.positions.items()}
        self._awaited: deque[tuple[int, dict[Partition, int]]] = deque()  # versions that are not known to be durable
        self._last_commit = self._last_said = float("-inf")
        self._put_off_seconds = FIRST_PUT_OFF_SECONDS

    def stop(self) -> None:
        """Commit what is learned and end."""
        self.signals.stop()

    def run(self) -> dict[str, Any]:
        """Learn until asked to stop; a pass of the loop is at most one batch. Returns the final status."""
        try:
            with self.signals:
                self.open()
                while not self.finished:
                    self.gather()
                    if (batch := self.next_batch()) is not None:  # one without samples moves positions too
                        self.learn(batch)
                    if self.asked and self.commit():
                        self.persist(self.orders.execute)  # right after a cut: what it moves finds room
                    if self.due:
                        self.commit()
                    self.say()
                self.commit(final=True)
            return self.close()
        except BaseException as error:
            self._fail(error)
            raise

    def open(self) -> None:
        """Begin to read."""
        if self.until_end:
            self.source.stop_at_end()
        self.source.start()
        # what lives by now lives to the end: the collector need not walk it in every batch
        gc.collect()
        gc.freeze()
        self.say()

    @property
    def finished(self) -> bool:
        """Whether somebody asked to stop, or the end that was asked for is learned."""
        if self.signals.stopping:
            return True
        if self.until_end and self.source.waiting_seconds > ABSENT_SECONDS:
            raise WaitingError(f"waited {ABSENT_SECONDS:.0f} s: {self.source.reason}")
        return self.until_end and self.source.finished and self.batcher.empty and self.upcoming is None

    def gather(self) -> None:
        """Take what the stream has, unless a whole batch waits already or the log has no room for more."""
        if self.log.is_full or self.log.is_stuck or self.dead_letters.unconfirmed_bytes > UNCONFIRMED_BYTES:
            self.signals.wait(POLL_SECONDS)
        elif self.batcher.num_rows < self.config.train.batch_size:
            for columns in self.source.poll(self.patience()):
                self.batcher.add(columns)

    def patience(self) -> float:
        """How long the stream may let us wait: until a batch or a version is due."""
        if self.upcoming is not None:
            return 0.0
        until_commit = self._last_commit + self.config.log.publish_seconds - time.monotonic()
        until_batch = self.batcher.seconds_until_due()
        waits = [POLL_SECONDS, until_commit if until_commit > 0 else POLL_SECONDS]
        return max(0.0, min([*waits, until_batch] if until_batch is not None else waits))

    def next_batch(self) -> Batch | None:
        """A batch that is due; at the end of the stream, what is left."""
        if self.log.is_full or self.log.is_stuck:
            return None
        batch, self.upcoming = self.upcoming, None
        if batch is None:
            batch = self.batcher.take()
        return self.batcher.flush() if batch is None and self.until_end and self.source.finished else batch

    def learn(self, batch: Batch) -> None:
        """1. Make room for the rows it may evict. 2. Send its dead letters. 3. Learn it, with a look at the next."""
        if self.state.learner.needs_cut(batch):
            while not self.commit():
                if self.signals.wait(POLL_SECONDS):
                    return  # its positions are not passed: the next trainer learns it
        self.dead_letters.send(batch.dead)
        if self.batcher.num_rows >= self.config.train.batch_size:
            self.upcoming = self.batcher.take()
        limit_ms = wall_ms() + int(self.config.source.max_future_seconds * 1000)
        self.persist(lambda: self.state.learn(batch, upcoming=self.upcoming, limit_ms=limit_ms))

    def persist(self, do: Callable[[], None]) -> None:
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
            if self.due:
                self.commit()
            self.say()
            if self.signals.wait(POLL_SECONDS):
                return

    @property
    def asked(self) -> bool:
        """Whether an order waits; while versions are put off it waits on."""
        return time.monotonic() > self._last_commit and not self.log.is_stuck and self.orders.has_new

    @property
    def due(self) -> bool:
        """Whether it is time for a version, and there is something to tell."""
        if self.log.is_stuck or time.monotonic() - self._last_commit < self.config.log.publish_seconds:
            return False
        return self.state.changed or self.complete_until_ms() > self.state.complete_until_ms

    def complete_until_ms(self) -> int:
        """The wall time at which everything then readable is learned."""
        return self.source.complete_until_ms(self.state.positions) or 0

    def commit(self, *, final: bool = False) -> bool:
        """1. The broker has every dead letter. 2. Cut. 3. Append. 4. Report what is durable. False: put off."""
        self._last_commit = time.monotonic()
        if final and not self.state.changed:
            return True
        try:
            self.dead_letters.flush(FLUSH_SECONDS)
        except StreamError as error:
            # a version must not pass letters that the broker does not have: learning goes on, publishing waits
            self.reason = f"dead letters cannot be delivered: {error}"
            logger.warning("version put off", extra={"reason": str(error), "seconds": self._put_off_seconds})
            self._last_commit = time.monotonic() + self._put_off_seconds
            self._put_off_seconds = min(2 * self._put_off_seconds, LONGEST_PUT_OFF_SECONDS)
            if final and self.until_end:
                raise
            return False
        self._put_off_seconds = FIRST_PUT_OFF_SECONDS
        self.reason = ""
        reach("before a cut")
        meta, arrays = self.state.cut(created_ms=wall_ms(), complete_until_ms=self.complete_until_ms())
        reach("after a cut")
        version = self.log.append(meta, arrays)
        self.generations.after_cut(version.number)
        self.orders.told(version.number)
        self._awaited.append((version.number, {p: position.offset for p, position in self.state.positions.items()}))
        self._report_durable()
        return True

    def say(self) -> None:
        """The status, once a second."""
        now = time.monotonic()
        if now - self._last_said >= SECONDS:
            self._last_said = now
            self._report_durable()
            self.generations.look(self.log.last.number if self.log.last else 0)
            self.rate.mark(self.state.samples_trained)
            self.status.say(document_of(self))

    def close(self) -> dict[str, Any]:
        """Everything durable, everything closed; returns the final status."""
        gc.unfreeze()
        self.log.sync()
        self._report_durable()
        final = document_of(self) | {
            "clean_end": True,
            "trainer": "stopped",
            "reason": "ended",
            "samples_per_second": 0.0,
        }
        self._release()
        return self.status.close(lambda: final)

    def _report_durable(self) -> None:
        durable = self.log.durable
        if durable is not None:
            self.orders.retire(durable.number)
        while durable is not None and self._awaited and self._awaited[0][0] <= durable.number:
            self.committed = self._awaited.popleft()[1]
            self.source.report_offsets(self.committed)

    def _release(self) -> None:
        """Each part is given back even where another fails."""
        closers: list[Callable[[], None]] = [self.source.close, self.dead_letters.close, self.state.learner.table.close]
        for close in [*closers, self.log.close]:
            try:
                close()
            except (SpringtideError, OSError) as error:
                logger.warning("not closed properly", extra={"reason": str(error)})

    def _fail(self, error: BaseException) -> None:
        """The last word of a trainer that could not go on."""
        said: Mapping[str, Any] = {"trainer": "failed", "reason": " ".join(str(error).split()) or type(error).__name__}
        if hasattr(self, "status"):
            self.status.close(lambda: {**self.status.document, **said, "samples_per_second": 0.0})
        if hasattr(self, "dead_letters"):
            self._release()
        else:
            self.log.close()
