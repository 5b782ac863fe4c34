# mypy: disable-error-code="untyped-decorator"
"""Lists that lie scattered in one array, brought together."""

# N records, P lists of each, E elements of all, M elements of one list feature
from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def gather_lists(elements_E: Any, start_NP: Any, length_NP: Any, p: Any) -> Any:
    """(ids_M, offsets) of the lists of column p in their order."""
    offsets = np.empty(len(start_NP) + 1, np.int64)
    offsets[0] = 0
    for n in range(len(start_NP)):
        offsets[n + 1] = offsets[n] + length_NP[n, p]
    ids_M = np.empty(offsets[-1], np.int64)
    for n in range(len(start_NP)):
        for i in range(length_NP[n, p]):
            ids_M[np.uint64(offsets[n] + i)] = elements_E[np.uint64(start_NP[n, p] + i)]
    return ids_M, offsets
