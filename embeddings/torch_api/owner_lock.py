"""The lock of a table that several threads of one process share."""

import os
import threading

from springtide.embeddings.errors import OwnershipError


class OwnerLock:
    """A reentrant lock that raises OwnershipError in a forked process."""

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        # a fork copies the lock in its present state: the child might wait for it for ever
        if os.getpid() != self._process:
            raise OwnershipError(
                f"this DynamicEmbedding belongs to process {self._process} and was used in its fork {os.getpid()}: "
                "let a data loader's workers return ids, and look them up in the process that trains"
            )
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
