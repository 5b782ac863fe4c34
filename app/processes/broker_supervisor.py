"""Supervises the embedded broker of a log: started if no process runs it yet, restarted when it dies."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from springtide.stream.broker.embedded import EmbeddedBroker, find_broker
from springtide.stream.config import SourceConfig
from springtide.stream.errors import EmbeddedBrokerError
from springtide_client.system.backoff import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0


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
