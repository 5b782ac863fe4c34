"""The ids whose rows are being recalled, so that the call that needs them is recognized."""

# K keys of one call
from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from springtide.embeddings.lookup.prefetch import Prefetch
from springtide.kernels.types import Array


@dataclass(frozen=True)
class PrefetchedIds:
    """A prefetch, valid for one call with the same ids in the same order."""

    ids: torch.Tensor  # of the caller; on the host a copy
    version: int  # of a tensor on a device, which is compared without looking at it
    prefetch: Prefetch | None  # None: its rows are not being recalled

    @staticmethod
    def of(ids: torch.Tensor, prefetch: Prefetch | None) -> PrefetchedIds:
        kept = ids.detach().clone() if ids.device.type == "cpu" else ids
        return PrefetchedIds(kept, _version(ids), prefetch)

    def are(self, ids: torch.Tensor) -> bool:
        """Return True if these are the same ids. Does not wait for a device."""
        if ids.device != self.ids.device or ids.dtype != self.ids.dtype or ids.numel() != self.ids.numel():
            return False
        if ids.device.type == "cpu":
            return torch.equal(ids.reshape(-1), self.ids.reshape(-1))
        is_same = ids is self.ids or (ids.data_ptr() == self.ids.data_ptr() and ids.stride() == self.ids.stride())
        return is_same and _version(ids) == self.version >= 0

    def seen_at(self, features_K: Array, ids_K: Array, times_K: Array) -> Prefetch | None:
        """The prefetch for these arrays of the same ids, which are looked up at one time."""
        if self.prefetch is None:
            return None
        unique = self.prefetch.unique
        unique = unique._replace(last_seen_U=times_K[: len(unique.ids_U)])
        return replace(self.prefetch, features_K=features_K, ids_K=ids_K, event_ms_K=times_K, unique=unique)


def _version(ids: torch.Tensor) -> int:
    """How often a tensor was changed in place; -1 if torch does not count it."""
    return -1 if ids.is_inference() else ids._version
