"""Keys whose rows left the table for good, and why: collected while there is a listener."""

# N keys
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array


class RemovalReason(StrEnum):
    """Why a row is in no tier any more."""

    CAPACITY = "capacity"  # evicted for lack of room, with no tier below that keeps it
    QUOTA = "quota"  # evicted because of quota_bytes, with no tier below that keeps it
    EXPIRED = "expired"  # by ttl_seconds, or among those seen least recently when the spill was full
    FORGOTTEN = "forgotten"
    PREDICATE = "predicate"


class RemovedKeys(NamedTuple):
    """Keys that left together."""

    reason: RemovalReason
    features_N: UInt16Array
    ids_N: Int64Array


class Removals:
    """Collects nothing until `wanted` is set. Used by one thread."""

    def __init__(self) -> None:
        self.wanted = False
        self._parts: list[RemovedKeys] = []
        self._created: list[tuple[UInt16Array, Int64Array]] = []
        self._inflight: list[Callable[[], RemovedKeys]] = []  # keys on their way from the device

    def add(self, reason: RemovalReason, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if self.wanted and len(ids_N):
            self._parts.append(RemovedKeys(reason, features_N, ids_N))

    def add_created(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Note keys that were in no tier and have a new row now."""
        if self.wanted and len(ids_N):
            self._created.append((features_N, ids_N))

    def take_created(self) -> tuple[UInt16Array, Int64Array]:
        """The keys noted since the last call."""
        parts, self._created = [(np.empty(0, np.uint16), np.empty(0, np.int64)), *self._created], []
        features, ids = zip(*parts, strict=True)
        return np.concatenate(features), np.concatenate(ids)

    def add_inflight(self, receive: Callable[[], RemovedKeys]) -> None:
        """Note keys that are still on the device. `receive` waits for their copy alone."""
        self._inflight.append(receive)

    def take(self) -> list[RemovedKeys]:
        """The keys removed since the last call, joined by reason, in the order of the first of each."""
        parts, self._parts, inflight, self._inflight = self._parts, [], self._inflight, []
        parts += [removed for receive in inflight if len((removed := receive()).ids_N)]
        joined: dict[RemovalReason, list[RemovedKeys]] = {}
        for part in parts:
            joined.setdefault(part.reason, []).append(part)
        return [
            RemovedKeys(reason, *map(np.concatenate, zip(*(part[1:] for part in same), strict=True)))
            for reason, same in joined.items()
        ]


def chosen(removed: RemovedKeys, chosen_N: BoolArray) -> RemovedKeys:
    """Those of the keys for which this is true."""
    return RemovedKeys(removed.reason, removed.features_N[chosen_N], removed.ids_N[chosen_N])
