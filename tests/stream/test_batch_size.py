from itertools import pairwise

import pytest

from springtide.stream.batch_size import GROWTH, BatchSize


def sizes_of_a_stream(size: BatchSize, num: int) -> list[int]:
    sizes: list[int] = []
    learned = 0
    while learned < num:
        sizes.append(size.after(learned))
        learned += sizes[-1]
    return sizes


def test_batches_grow_with_what_was_learned_in_powers_of_two():
    sizes = sizes_of_a_stream(BatchSize(4096, 16), 1_000_000)
    assert sorted(set(sizes)) == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert all(size <= after for size, after in pairwise(sizes))
    learned = 0
    for size in sizes:
        assert size == 16 or size * GROWTH <= learned
        learned += size
    assert sum(size < 4096 for size in sizes) == 9 * GROWTH  # 2 * GROWTH of 16, and GROWTH of each size up to 2048


def test_a_short_log_is_learned_in_small_steps():
    assert max(sizes_of_a_stream(BatchSize(4096, 16), 20_000)) == 128


@pytest.mark.parametrize(
    ("most", "fewest", "sizes"),
    [
        (4096, 0, {4096}),  # fixed
        (4096, 8192, {4096}),
        (8, 16, {8}),
        (100, 1, {1, 2, 4, 8, 16, 32, 64, 100}),
        (100, 20, {20, 32, 64, 100}),
    ],
)
def test_sizes_stay_between_the_fewest_and_the_most(most, fewest, sizes):
    assert set(sizes_of_a_stream(BatchSize(most, fewest), 50_000)) == sizes


@pytest.mark.parametrize("growth", [1, 32])
def test_a_batch_has_at_most_a_part_of_what_was_learned_before(growth):
    sizes = sizes_of_a_stream(BatchSize(4096, 16, growth), 300_000)
    learned = 0
    for size in sizes:
        assert size == 16 or size * growth <= learned
        learned += size
    assert sum(size < 4096 for size in sizes) == 9 * growth


@pytest.mark.parametrize(("most", "fewest", "eager"), [(4096, 16, 16), (8, 16, 8), (4096, 0, 4096)])
def test_the_fewest_samples_are_worth_a_step_once_caught_up(most, fewest, eager):
    assert BatchSize(most, fewest).eager == eager


@pytest.mark.parametrize(("most", "fewest"), [(0, 16), (16, -1)])
def test_invalid_sizes_are_refused(most, fewest):
    with pytest.raises(ValueError, match="must be at least"):
        BatchSize(most, fewest)
