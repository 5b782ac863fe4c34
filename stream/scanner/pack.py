# mypy: disable-error-code="untyped-decorator"
"""Lists that lie scattered in one array, brought together."""

# N lists, E elements of all, M elements of these
from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def pack_lists(elements_E: Any, start_N: Any, length_N: Any) -> Any:
    """(ids_M, offsets) of the lists in their order."""
    offsets = np.empty(len(start_N) + 1, np.int64)
    offsets[0] = 0
    for n in range(len(start_N)):
        offsets[n + 1] = offsets[n] + length_N[n]
    ids_M = np.empty(offsets[-1], np.int64)
    for n in range(len(start_N)):
        for i in range(length_N[n]):
            ids_M[np.uint64(offsets[n] + i)] = elements_E[np.uint64(start_N[n] + i)]
    return ids_M, offsets
