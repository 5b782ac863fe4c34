"""The embedded broker of a log, for as long as somebody needs it: started if nobody has, restarted if it dies."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from springtide_client.system.backoff import Backoff

from app.config.load import Config
from stream.broker.discovery import find_broker
from stream.broker.embedded import EmbeddedBroker
from stream.errors import EmbeddedBrokerError

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0


class BrokerSupervisor(AbstractContextManager["BrokerSupervisor"]):
    """Does nothing where the source names a broker of its own, or another process already runs the embedded one."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, clock=clock)
        needed = config.source.uses_embedded_broker and find_broker(config.log.path) is None
        self.broker = EmbeddedBroker(config.log.path) if needed else None

    def __enter__(self) -> "BrokerSupervisor":
        if self.broker is not None:
            self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.broker is not None:
            self.broker.stop()

    def restart_if_dead(self) -> None:
        """Start the broker again when it died; its topics are gone then, which readers notice by themselves."""
        if self.broker is None or self.broker.alive or not self._backoff.is_over:
            return
        logger.warning("the embedded broker ended and is started again; its topics are gone")
        self._backoff.fail()
        try:
            self.broker.stop()
            self.broker.start()
        except EmbeddedBrokerError as error:
            logger.warning("the embedded broker does not start: %s", error)
