"""Which rank holds a key: the mixed hash (springtide_client.keys) is divided into contiguous ranges of equal size."""

# U keys, N rows, R ranks
import numpy as np

from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.kernels.types import Array
from springtide_client.keys import mix_keys


def owners_of(mixed_U: Array, num_ranks: int) -> Array:
    """Return the rank of each mixed key (U), uint64, as uint16 (U)."""
    shift = np.uint64(32)
    return (((mixed_U >> shift) * np.uint64(num_ranks)) >> shift).astype(np.uint16)


def are_of_rank(features_N: UInt16Array, ids_N: Int64Array, rank: int, num_ranks: int) -> BoolArray:
    """Return which keys belong to a rank: shared keys of features, and crosses, like any others."""
    own_N: BoolArray = owners_of(mix_keys(features_N, ids_N), num_ranks) == rank
    return own_N


def blocks_of_rank(num_blocks: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the first and the last block of an admission sketch that keys of a rank are counted in.

    Blocks go by the mixed hash too (kernels/cpu/admission/sketch.py). The block at a border may be of two ranks; there
    is none if the number of ranks divides that of blocks.
    """
    first, after = (-(-(rank_ << 32) // num_ranks) for rank_ in (rank, rank + 1))
    return first * num_blocks >> 32, (after - 1) * num_blocks >> 32


def border_blocks_of_rank(num_blocks: int, rank: int, num_ranks: int) -> tuple[int, ...]:
    """Return those of them that another rank counts keys in too."""
    own, all_ = blocks_of_rank(num_blocks, rank, num_ranks), range(num_ranks)
    others = {block for other in all_ if other != rank for block in blocks_of_rank(num_blocks, other, num_ranks)}
    return tuple(sorted(others & set(own)))
