"""Impressions by the hash of their key, found by the events that come within their windows."""

# N events, M stored impressions, P pairs of both
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.join.key_index import KeyIndex, UInt64Array
from springtide_client.array_types import Int64Array


class ImpressionIndex(KeyIndex):
    """Each impression has a number, its place among those of its window."""

    columns: ClassVar[Mapping[str, npt.DTypeLike]] = {**KeyIndex.columns, "number": np.int64}

    def append(self, key_hash_N: UInt64Array, shown_ms_N: Int64Array, number_N: Int64Array) -> None:
        """Append impressions, in any order of time."""
        self.add({"key_hash": key_hash_N, "ms": shown_ms_N, "number": number_N})

    def find(
        self, key_hash_N: UInt64Array, from_ms_N: Int64Array, to_ms_N: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The pairs (P) of an event and a number of an impression of its key shown between two times, with bounds."""
        impressions = (*self.chains, self.column("number"))
        at_P, number_P = np.empty(len(key_hash_N), np.int64), np.empty(len(key_hash_N), np.int64)
        num = find_impressions(impressions, key_hash_N, from_ms_N, to_ms_N, at_P, number_P)
        if num > len(at_P):
            at_P, number_P = np.empty(num, np.int64), np.empty(num, np.int64)
            find_impressions(impressions, key_hash_N, from_ms_N, to_ms_N, at_P, number_P)
        return at_P[:num], number_P[:num]


@njit(nogil=True, cache=True)
def find_impressions(impressions: Any, key_hash_N: Any, from_ms_N: Any, to_ms_N: Any, at_P: Any, number_P: Any) -> Any:
    """Write the pairs as far as there is room; return how many there are."""
    key_hash_M, ms_M, next_M, head_H, number_M = impressions
    mask, num = np.uint64(len(head_H) - 1), 0
    for n in range(len(key_hash_N)):
        m = head_H[key_hash_N[n] & mask]
        while m >= 0:
            if key_hash_M[m] == key_hash_N[n] and from_ms_N[n] <= ms_M[m] <= to_ms_N[n]:
                if num < len(at_P):
                    at_P[num], number_P[num] = n, number_M[m]
                num += 1
            m = next_M[m]
    return num
