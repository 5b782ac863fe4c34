"""The compactor as the trainer's child: started, restarted when it dies, stopped with the trainer."""

import logging
import re
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from springtide.app.errors import UserError
from springtide.app.processes.supervisor import ChildSpec, Supervisor

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
REFUSED_PAUSE_SECONDS = 10.0  # after the child refused its configuration, which can be corrected meanwhile
STOP_SECONDS = 1.0  # a compaction under way is abandoned; the next compactor starts it again
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
        self._supervisor.stop(STOP_SECONDS)

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
