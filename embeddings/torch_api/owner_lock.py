"""Who may touch a table that threads share: one at a time, and only those of the process that made it."""

import os
import threading

from embeddings.errors import OwnershipError


class OwnerLock:
    """A lock that its holder may take again, and that a forked child is told it cannot have."""

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        # a fork copies the lock as it is: a child that waited for it might wait for ever
        if os.getpid() != self._process:
            raise OwnershipError(
                f"this DynamicEmbedding lives in process {self._process} and was met in its fork {os.getpid()}: "
                "a data loader's workers give ids, and the process that trains looks them up"
            )
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
