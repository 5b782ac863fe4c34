"""Which rank holds a key: the mixed hash (springtide_client.keys) is cut into contiguous ranges of equal size."""

# U keys, R ranks
from typing import Any

from kernels.types import Array


def owners_of(xp: Any, mixed_U: Array, num_ranks: int) -> Array:
    """Return the rank of each mixed key (U), uint64, as uint16 (U). `xp`: numpy or compatible."""
    shift = xp.uint64(32)
    return (((mixed_U >> shift) * xp.uint64(num_ranks)) >> shift).astype(xp.uint16)


def range_of(rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the first mixed key of a rank's range and the first one after it; the last range ends at 2**64."""
    start, stop = (-(-(place << 32) // num_ranks) << 32 for place in (rank, rank + 1))
    return start, stop
