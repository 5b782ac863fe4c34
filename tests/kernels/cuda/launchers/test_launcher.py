"""Grids cover what there is to do and no more than a grid may have."""

from hypothesis import given
from hypothesis import strategies as st

from springtide.kernels.cuda.launchers.launcher import MOST_BLOCKS, MOST_CHUNKS, blocks_for, chunk_for, chunks_for

THREADS = st.sampled_from([32, 64, 256, 1024])


@given(st.integers(0, 2**40), THREADS)
def test_blocks_give_each_thread_one_thing_as_far_as_a_grid_goes(num: int, threads: int) -> None:
    blocks = blocks_for(num, threads)
    assert 1 <= blocks <= MOST_BLOCKS
    assert blocks * threads >= num or blocks == MOST_BLOCKS
    assert blocks == 1 or (blocks - 1) * threads < num


@given(st.integers(0, 2**40), THREADS)
def test_chunks_are_whole_tiles_that_cover_everything_once(num: int, threads: int) -> None:
    chunk, chunks = chunk_for(num, threads), chunks_for(num, threads)
    assert chunk % threads == 0
    assert 1 <= chunks <= MOST_CHUNKS
    assert chunks * chunk >= num
    assert chunks == 1 or (chunks - 1) * chunk < num
