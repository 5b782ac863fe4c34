"""How many blocks a launch takes: arithmetic only."""

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
