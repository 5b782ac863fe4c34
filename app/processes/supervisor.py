"""Supervised children: started, their output forwarded, restarted with backoff when dead, stopped together.

`Supervisor` has subcommands of ours, `BrokerSupervisor` the embedded broker, `CompactorSupervisor` a trainer's
compactor.
"""

import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from springtide.app.errors import UserError
from springtide.app.processes.signals import child_environment
from springtide.stream.broker.embedded import EmbeddedBroker, find_broker
from springtide.stream.config import SourceConfig
from springtide.stream.errors import EmbeddedBrokerError
from springtide_client.system.clock import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
STABLE_SECONDS = 60.0  # a child that lived this long is restarted after the shortest pause again
STOP_SECONDS = 30.0  # a trainer writes its last version before it exits, which takes longer on a busy machine
USER_ERROR_EXIT_CODE = 2

LineHandler = Callable[[str, str], None]  # gets the child's name and a line of its output


@dataclass(frozen=True)
class ChildSpec:
    """A subcommand of springtide to run as a child."""

    name: str
    arguments: Sequence[str]
    module: str = "springtide"

    def command(self) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-P", "-m", self.module, *self.arguments]


class Child:
    """One child process and its restarts."""

    def __init__(self, spec: ChildSpec, on_line: LineHandler, clock: Callable[[], float]) -> None:
        self.spec = spec
        self.num_restarts = 0
        self.last_line = ""
        self._on_line = on_line
        self._clock = clock
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._began = 0.0
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, clock=clock)
        self._is_restart_scheduled = False

    @property
    def pid(self) -> int | None:
        """The process id; None before the first start."""
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, in a session of its own: Ctrl-C reaches only the supervisor, which stops its children."""
        self._began, self._is_restart_scheduled = self._clock(), False
        self._process = subprocess.Popen(
            self.spec.command(),
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), name=self.spec.name, daemon=True)
        self._reader.start()

    def restart_if_dead(self) -> None:
        """Restart the process if it is dead and the pause is over; UserError if it refused its configuration."""
        if self._process is None or self.alive:
            return
        if not self._is_restart_scheduled:
            code = self._process.returncode
            self._join_reader()
            if code == USER_ERROR_EXIT_CODE:
                raise UserError(self.last_line.removeprefix("springtide: ") or f"{self.spec.name} refused to start")
            if self._clock() - self._began >= STABLE_SECONDS:
                self._backoff.succeed()
            pause, self._is_restart_scheduled = self._backoff.fail(), True
            logger.warning(
                "%s exited and will be restarted",
                self.spec.name,
                extra={"exit_code": code, "in_seconds": pause, "last_line": self.last_line},
            )
        if self._backoff.is_over:
            self.num_restarts += 1
            self.start()

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self._process is not None and self.alive:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Wait for the process to exit and return True; after `seconds` kill it and return False."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(seconds, 0.01))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._join_reader()
        return True

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if text := line.rstrip():
                    self.last_line = text
                    self._on_line(self.spec.name, text)

    def _join_reader(self) -> None:
        # a grandchild may still hold the pipe open: its output is not worth waiting for
        if self._reader is not None:
            self._reader.join(0.5)


class Supervisor:
    """Children that are started in order and stopped in reverse order. A context manager."""

    def __init__(
        self, specs: Sequence[ChildSpec], *, on_line: LineHandler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.children = [Child(spec, on_line, clock) for spec in specs]

    def __enter__(self) -> "Supervisor":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start every child."""
        for child in self.children:
            child.start()

    def restart_dead(self) -> None:
        """Restart each dead child whose pause is over; UserError if one refused its configuration."""
        for child in self.children:
            child.restart_if_dead()

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Stop every child within `seconds`, killing those that do not exit; return True if none was killed."""
        deadline = self._clock() + seconds
        for child in reversed(self.children):
            child.terminate()
        exited = [child.wait(deadline - self._clock()) for child in reversed(self.children)]
        for child, has_exited in zip(reversed(self.children), exited, strict=True):
            if not has_exited:
                logger.warning("%s did not exit in time and was killed", child.spec.name)
        return all(exited)


class BrokerSupervisor(AbstractContextManager["BrokerSupervisor"]):
    """Runs the embedded broker, unless the source names another broker or another process runs the embedded one."""

    def __init__(self, source: SourceConfig, log_path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, clock=clock)
        is_needed = source.uses_embedded_broker and find_broker(log_path) is None
        self.broker = EmbeddedBroker(log_path) if is_needed else None

    def __enter__(self) -> "BrokerSupervisor":
        if self.broker is not None:
            self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.broker is not None:
            self.broker.stop()

    def restart_if_dead(self) -> None:
        """Restart the broker if it is dead and the pause is over. Its topics are lost; readers see that by the ids."""
        if self.broker is None or self.broker.alive or not self._backoff.is_over:
            return
        logger.warning("the embedded broker died and is restarted; its topics are lost")
        self._backoff.fail()
        try:
            self.broker.stop()
            self.broker.start()
        except EmbeddedBrokerError as error:
            logger.warning("the embedded broker does not start: %s", error)


CHECK_SECONDS = 0.5
REFUSED_PAUSE_SECONDS = 10.0  # after the child refused its configuration, which can be corrected meanwhile
COMPACTOR_STOP_SECONDS = 1.0  # a compaction under way is abandoned; the next compactor starts it again
TIME_OF_DAY = re.compile(r"\d\d:\d\d:\d\d ")


class CompactorSupervisor(AbstractContextManager["CompactorSupervisor"]):
    """Supervises `springtide compact` from a thread of its own, so that learning never waits for it."""

    def __init__(self, config_path: Path, log_path: Path) -> None:
        """`log_path`: the trainer's log; the compactor stays with it, whatever is written to the file meanwhile."""
        spec = ChildSpec("compact", ["compact", "--config", str(config_path), "--log", str(log_path)])
        self._supervisor = Supervisor([spec], on_line=log_line)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="compactor-supervisor", daemon=True)

    def __enter__(self) -> "CompactorSupervisor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._supervisor.stop(COMPACTOR_STOP_SECONDS)

    def _supervise(self) -> None:
        self._supervisor.start()
        while not self._stopping.wait(CHECK_SECONDS):
            try:
                self._supervisor.restart_dead()
            except UserError as error:
                logger.warning("the compactor does not start, trying again: %s", error)
                if not self._stopping.wait(REFUSED_PAUSE_SECONDS):
                    self._supervisor.start()


def log_line(name: str, line: str) -> None:
    """Log a child's output line; its time of day is dropped, because the event gets one."""
    logger.info("%s: %s", name, TIME_OF_DAY.sub("", line, count=1))
