"""Which rank holds a key: the mixed hash (springtide_client.keys) is cut into contiguous ranges of equal size."""

# U keys, R ranks
from typing import Any

from kernels.types import Array


def owners_of(xp: Any, mixed_U: Array, num_ranks: int) -> Array:
    """Return the rank of each mixed key (U), uint64, as uint16 (U). `xp`: numpy or compatible."""
    shift = xp.uint64(32)
    return (((mixed_U >> shift) * xp.uint64(num_ranks)) >> shift).astype(xp.uint16)
