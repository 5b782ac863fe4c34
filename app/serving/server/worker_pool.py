"""Keeps the workers of one server: starts them, replaces who died, restarts them one by one, stops all.

They share the listener, so that a connection waits for whoever takes it next, and what was imported before them.
Knows nothing of what they answer.
"""

# 1 a worker listens once it has a version; 2 only then its predecessor leaves: at no time does nobody answer
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from springtide_client.system.backoff import Backoff

from app.serving.cache_folder import CacheFolder
from app.serving.config import ServeConfig
from app.serving.ops.shared_metrics import SharedMetrics, WorkerSlot
from app.serving.server.child_process import ChildProcess

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
STABLE_SECONDS = 60.0  # one that lived so long is replaced as if none had ever failed
STOP_SECONDS = 3.0
LEAVE_SECONDS = 70.0  # a worker leaves by itself sooner than that

# answer requests at this place, as this configuration says; say so once they are heard; others answer meanwhile
WorkerMain = Callable[[ServeConfig, WorkerSlot, Callable[[], None], bool], None]

logger = logging.getLogger(__name__)


class Worker:
    """One process."""

    def __init__(self, number: int, process: ChildProcess, answers: int, began: float) -> None:
        self.number = number
        self.process = process
        self.began = began
        self.leave_by: float | None = None  # it was asked to leave, and has until then
        self._answers: int | None = answers
        self._has_answered = False

    @property
    def is_listening(self) -> bool:
        """Whether it answers requests by now."""
        if self._answers is not None:
            with suppress(BlockingIOError):
                self._has_answered = os.read(self._answers, 1) != b""  # its word, or its end
                self.close()
        return self._has_answered and self.process.alive

    def close(self) -> None:
        """Hear no more."""
        if self._answers is not None:
            os.close(self._answers)
            self._answers = None


class WorkerPool:
    """As many as the configuration says. Call `look` often; from the main thread, whose end ends them too."""

    def __init__(
        self,
        answer: WorkerMain,
        config: ServeConfig,
        tally_folder: Path,
        *,
        on_end: Callable[[int], None] = lambda number: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_end = on_end
        self._answer = answer
        self._folder = CacheFolder(config.cache_path)
        # memory, and files without a name, are shared out; snapshots are shared
        own = {name: max(1, getattr(config, name) // config.workers) for name in ("cache_bytes", "cache_disk_bytes")}
        self._config = replace(config, cache_path=str(self._folder.path), **own)
        self._tally = SharedMetrics(tally_folder)
        self._clock = clock
        self._living: list[Worker] = []
        self._to_replace: list[Worker] = []
        self._untold: list[tuple[int, str]] = []  # ends that the tally has not heard of: the disk was full
        self._num_started = 0
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, clock=clock)

    @property
    def all_listening(self) -> bool:
        """Whether every worker answers, and none is being replaced."""
        return len(self._staying()) == len(self._living) == self._config.workers and all(
            worker.is_listening for worker in self._living
        )

    def start_rolling_restart(self) -> None:
        """Restart every worker, one after the other, each when its successor answers; what was begun is done first."""
        begun = self._to_replace
        self._to_replace = begun + [worker for worker in self._staying() if worker not in begun]
        logger.info("restarting the workers one by one", extra={"workers": len(self._to_replace)})

    def supervise(self) -> None:
        """1. Mourn the dead. 2. Start whoever is missing. 3. Ask one to leave whose successor answers."""
        for worker in [worker for worker in self._living if not worker.process.alive]:
            self._bury(worker)
        self._tell_ends()
        is_rolling = bool(self._to_replace) and not any(worker.leave_by for worker in self._living)
        missing = self._config.workers + is_rolling - len(self._staying())
        while missing > 0 and self._backoff.is_over:
            try:
                self._start()
            except OSError as error:  # no process or file left for now: those that live go on
                self._backoff.pause_for(LONGEST_PAUSE_SECONDS)
                extra = {"error": str(error), "again_in_seconds": LONGEST_PAUSE_SECONDS}
                logger.warning("a worker cannot be started now", extra=extra)
            missing -= 1
        staying = self._staying()
        if is_rolling and len(staying) > self._config.workers and all(worker.is_listening for worker in staying):
            leaving = self._to_replace.pop(0)
            leaving.leave_by = self._clock() + LEAVE_SECONDS
            leaving.process.send_signal(signal.SIGHUP)
        for worker in self._living:
            if worker.leave_by is not None and self._clock() > worker.leave_by:
                worker.process.send_signal(signal.SIGKILL)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask all to end, kill who has not after the time."""
        deadline = self._clock() + seconds
        for worker in self._living:
            worker.process.send_signal(signal.SIGTERM)
        for worker in self._living:
            if not worker.process.wait(deadline - self._clock()):
                logger.warning("a worker did not end in time and was killed", extra={"pid": worker.process.pid})
                worker.process.send_signal(signal.SIGKILL)
                worker.process.wait(STOP_SECONDS)
            worker.close()
        self._living.clear()
        self._folder.close()

    def _staying(self) -> list[Worker]:
        return [worker for worker in self._living if worker.leave_by is None]

    def _start(self) -> None:
        hears, answers = os.pipe()
        os.set_blocking(hears, False)
        number = self._num_started
        is_successor = number >= self._config.workers

        def tell() -> None:
            os.write(answers, b".")

        def answer() -> None:
            os.close(hears)
            for worker in self._living:
                worker.close()
            self._answer(self._config, WorkerSlot(number, self._tally), tell, is_successor)

        try:
            process = ChildProcess(answer)
        except OSError:
            os.close(hears)
            raise
        finally:
            os.close(answers)
        self._living.append(Worker(number, process, hears, self._clock()))
        self._num_started += 1

    def _tell_ends(self) -> None:
        with suppress(OSError):  # counts can wait for a disk with room, workers cannot
            while self._untold:
                self._tally.record_exit(*self._untold[0])
                self._untold.pop(0)

    def _bury(self, worker: Worker) -> None:
        self._living.remove(worker)
        worker.close()
        self._on_end(worker.number)
        has_left = worker.leave_by is not None
        self._untold.append((worker.number, "replaced" if has_left else "died"))
        self._folder.remove_drafts(worker.process.pid)
        if worker in self._to_replace:
            self._to_replace.remove(worker)
        if has_left:
            return
        if self._clock() - worker.began >= STABLE_SECONDS:
            self._backoff.succeed()
        extra = {"pid": worker.process.pid, "exit": worker.process.exit_code, "in_seconds": self._backoff.fail()}
        logger.warning("a worker ended and will be replaced", extra=extra)
