"""How many blocks a launch takes, and where things begin in a block of memory: arithmetic only."""

from collections.abc import Iterable
from itertools import accumulate

MOST_BLOCKS = 1 << 16  # of loops that step over the whole grid: more than any GPU runs at once
MOST_CHUNKS = 4096  # every block of a compaction adds up the counts of those before it


def blocks_for(num_threads: int, threads: int) -> int:
    """Blocks of so many threads that give each thread one thing, as far as a grid goes; at least one."""
    return min(max(1, -(-num_threads // threads)), MOST_BLOCKS)


def chunk_for(num: int, threads: int) -> int:
    """How many of `num` things one block compacts: whole tiles of a block, and no more than MOST_CHUNKS chunks."""
    return max(4, -(-num // (MOST_CHUNKS * threads))) * threads


def chunks_for(num: int, threads: int) -> int:
    """The blocks of that compaction; at least one."""
    return max(1, -(-num // chunk_for(num, threads)))


def starts_of(sizes: Iterable[int], alignment: int) -> tuple[list[int], int]:
    """Where things of so many bytes begin in one block, each at a multiple of `alignment`; the block's bytes."""
    ends = list(accumulate((-(-size // alignment) * alignment for size in sizes), initial=0))
    return ends[:-1], max(ends[-1], 1)
