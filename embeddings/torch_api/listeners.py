"""The callbacks of `on_evict`: called without the table's lock, so they may use the object."""

from collections.abc import Callable, Iterable

import torch

from springtide.embeddings.policy.removals import RemovedKeys

OnEvict = Callable[[torch.Tensor, str], object]


class RemovalListeners:
    """False while there are none."""

    def __init__(self) -> None:
        self._callbacks: list[OnEvict] = []

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, callback: OnEvict) -> None:
        self._callbacks.append(callback)

    def remove(self, callback: OnEvict) -> None:
        """ValueError if it was not added."""
        self._callbacks.remove(callback)

    def call(self, removed: Iterable[RemovedKeys]) -> None:
        """Pass on the ids of each reason. An exception of a callback goes to the caller."""
        for keys in removed:
            for callback in list(self._callbacks):
                callback(torch.from_numpy(keys.ids_N.copy()), keys.reason.value)
