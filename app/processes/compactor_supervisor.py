"""The merger as the trainer's child: started, restarted when it dies, stopped with the trainer."""

import logging
import os
import threading
from contextlib import AbstractContextManager

from app.config.load import Config
from app.errors import UserError
from app.processes.supervisor import ChildSpec, Supervisor

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
STOP_SECONDS = 1.0  # a merge under way is dropped: the next one begins it anew


class CompactorSupervisor(AbstractContextManager["CompactorSupervisor"]):
    """Looks after the merger from a thread of its own, so that learning never waits for it."""

    def __init__(self, config: Config) -> None:
        self._supervisor = Supervisor([compactor_child(config)], on_line=log_line)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="merger-keeper", daemon=True)

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
                logger.warning("the merger refuses to start: %s", error)
                return


def compactor_child(config: Config) -> ChildSpec:
    """The merger's own command: it imports no torch."""
    log = config.log
    arguments = [str(log.path), "--parent", str(os.getpid())]
    arguments += ["--base-minutes", str(log.base_minutes), "--keep-bases", str(log.keep_bases)]
    arguments += ["--log-bytes", str(log.log_bytes), "--window-samples", str(config.train.window_samples)]
    arguments += [] if log.onnx else ["--no-onnx"]
    return ChildSpec("compact", arguments, module="app.version_log.compact")


def log_line(name: str, line: str) -> None:
    """A child's words as an event of ours."""
    logger.info("%s: %s", name, line)
