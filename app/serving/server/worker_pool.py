"""Keeps the workers of one server: starts them, replaces dead ones, restarts them one by one, stops all.

Workers share the listener, so that a connection waits for the next free one, and every module imported before the fork.
Knows nothing of what they answer.
"""

# 1. a worker listens once it has a version; 2. only then its predecessor leaves: at every moment some worker answers
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from springtide.app.serving.cache_folder import CacheFolder
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.metrics.shared_metrics import SharedMetrics, WorkerSlot
from springtide_client.system.clock import Backoff
from springtide_client.system.parent_death import die_with_parent

POLL_SECONDS = 0.01
HANDLED_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

logger = logging.getLogger(__name__)


class ChildProcess:
    """A child made by fork: it shares its parent's memory, with every module that the parent has imported.

    The parent must have one thread, and must not have started anything that keeps threads of its own.
    A child process that runs one function and exits.
    """

    def __init__(self, main: Callable[[], None]) -> None:
        """Fork. The child dies with its parent, in a session of its own: the parent's terminal does not signal it.

        Raises OSError if the system has no process left.
        """
        self.exit_code: int | None = None  # negative: killed by that signal
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        mask: set[int | signal.Signals]
        # a signal must not reach the child while it still has its parent's handlers: it stays pending
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # sleeping threads of libraries
            try:
                self.pid = os.fork()
            except OSError:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                raise
        if self.pid == 0:
            _run_child(main, parent, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def alive(self) -> bool:
        """True while the child has not exited; reaps it when it has."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if the child is alive."""
        if self.alive:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait for the exit; returns False if the child is alive after the time."""
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return not self.alive


def _run_child(main: Callable[[], None], parent: int, mask: set[int | signal.Signals]) -> None:
    """The whole life of the child; does not return."""
    code = 1
    try:
        die_with_parent(parent)
        os.setsid()
        for number in HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        main()
        code = 0
    except Exception:
        logger.exception("a worker failed")
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
STABLE_SECONDS = 60.0  # a worker that lived so long is replaced after the first pause again
STOP_SECONDS = 3.0
LEAVE_SECONDS = 70.0  # a worker leaves by itself sooner than that

# (its configuration, its slot, a call that reports that it listens, True if others answer meanwhile)
WorkerMain = Callable[[ServeConfig, WorkerSlot, Callable[[], None], bool], None]


class Worker:
    """One process of the pool."""

    def __init__(self, number: int, process: ChildProcess, ready_pipe: int, started_at: float) -> None:
        """`ready_pipe` is the reading end of a pipe; the worker writes a byte once it listens."""
        self.number = number
        self.process = process
        self.started_at = started_at
        self.leave_by: float | None = None  # it was asked to leave, and is killed at this time
        self._ready_pipe: int | None = ready_pipe
        self._is_ready = False

    @property
    def is_listening(self) -> bool:
        """True once the worker answers requests."""
        if self._ready_pipe is not None:
            with suppress(BlockingIOError):
                self._is_ready = os.read(self._ready_pipe, 1) != b""  # empty: it has exited
                self.close()
        return self._is_ready and self.process.alive

    def close(self) -> None:
        """Close the pipe."""
        if self._ready_pipe is not None:
            os.close(self._ready_pipe)
            self._ready_pipe = None


class WorkerPool:
    """As many workers as the configuration says.

    Call `supervise` often, from the main thread: the workers die with it.
    """

    def __init__(
        self,
        main: WorkerMain,
        config: ServeConfig,
        metrics_folder: Path,
        *,
        on_exit: Callable[[int], None] = lambda number: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`main` is what a worker does; `on_exit(number)` is called after a worker has exited."""
        self._main = main
        self._on_exit = on_exit
        self._folder = CacheFolder(config.cache_path)
        # memory, and files without a name, are divided among the workers; snapshots are shared
        own = {name: max(1, getattr(config, name) // config.workers) for name in ("cache_bytes", "cache_disk_bytes")}
        self._config = replace(config, cache_path=str(self._folder.path), **own)
        self._shared = SharedMetrics(metrics_folder)
        self._clock = clock
        self._workers: list[Worker] = []
        self._to_replace: list[Worker] = []
        self._unrecorded_exits: list[tuple[int, str]] = []  # not in the shared metrics yet: the disk was full
        self._num_started = 0
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, clock=clock)

    @property
    def all_listening(self) -> bool:
        """True if every worker answers, and none is being replaced."""
        return len(self._staying()) == len(self._workers) == self._config.workers and all(
            worker.is_listening for worker in self._workers
        )

    def start_rolling_restart(self) -> None:
        """Replace every worker, one after the other, each once its successor answers.

        Replacements that are still due from an earlier call come first.
        """
        earlier = self._to_replace
        self._to_replace = earlier + [worker for worker in self._staying() if worker not in earlier]
        logger.info("restarting the workers one by one", extra={"workers": len(self._to_replace)})

    def supervise(self) -> None:
        """1. Reap exited workers. 2. Start missing ones. 3. Ask one to leave whose successor answers."""
        for worker in [worker for worker in self._workers if not worker.process.alive]:
            self._reap(worker)
        self._record_exits()
        is_rolling = bool(self._to_replace) and not any(worker.leave_by for worker in self._workers)
        missing = self._config.workers + is_rolling - len(self._staying())
        while missing > 0 and self._backoff.is_over:
            try:
                self._start()
            except OSError as error:  # no process or file left for now: the live workers go on
                self._backoff.pause_for(LONGEST_PAUSE_SECONDS)
                extra = {"error": str(error), "retry_in_seconds": LONGEST_PAUSE_SECONDS}
                logger.warning("a worker cannot be started for now", extra=extra)
            missing -= 1
        staying = self._staying()
        if is_rolling and len(staying) > self._config.workers and all(worker.is_listening for worker in staying):
            leaving = self._to_replace.pop(0)
            leaving.leave_by = self._clock() + LEAVE_SECONDS
            leaving.process.send_signal(signal.SIGHUP)
        for worker in self._workers:
            if worker.leave_by is not None and self._clock() > worker.leave_by:
                worker.process.send_signal(signal.SIGKILL)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask all workers to exit, and kill those that have not after the time."""
        deadline = self._clock() + seconds
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in self._workers:
            if not worker.process.wait(deadline - self._clock()):
                logger.warning("a worker did not exit in time and was killed", extra={"pid": worker.process.pid})
                worker.process.send_signal(signal.SIGKILL)
                worker.process.wait(STOP_SECONDS)
            worker.close()
        self._workers.clear()
        self._folder.close()

    def _staying(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.leave_by is None]

    def _start(self) -> None:
        ready_pipe, report_pipe = os.pipe()
        os.set_blocking(ready_pipe, False)
        number = self._num_started
        is_successor = number >= self._config.workers

        def report_listening() -> None:
            os.write(report_pipe, b".")

        def run() -> None:
            os.close(ready_pipe)
            for worker in self._workers:
                worker.close()
            self._main(self._config, WorkerSlot(number, self._shared), report_listening, is_successor)

        try:
            process = ChildProcess(run)
        except OSError:
            os.close(ready_pipe)
            raise
        finally:
            os.close(report_pipe)
        self._workers.append(Worker(number, process, ready_pipe, self._clock()))
        self._num_started += 1

    def _record_exits(self) -> None:
        with suppress(OSError):  # the counts can wait until the disk has room, the workers cannot
            while self._unrecorded_exits:
                self._shared.record_exit(*self._unrecorded_exits[0])
                self._unrecorded_exits.pop(0)

    def _reap(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.close()
        self._on_exit(worker.number)
        was_replaced = worker.leave_by is not None
        self._unrecorded_exits.append((worker.number, "replaced" if was_replaced else "died"))
        self._folder.remove_drafts(worker.process.pid)
        if worker in self._to_replace:
            self._to_replace.remove(worker)
        if was_replaced:
            return
        if self._clock() - worker.started_at >= STABLE_SECONDS:
            self._backoff.succeed()
        pause = self._backoff.fail()
        extra = {"pid": worker.process.pid, "exit": worker.process.exit_code, "in_seconds": pause}
        logger.warning("a worker exited and will be replaced", extra=extra)
