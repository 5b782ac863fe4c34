import numpy as np

from tests.bench.workloads.keys import churn_stream, positions, scattered_ids, zipf_ranks


def test_scattered_ids_are_distinct() -> None:
    assert len(np.unique(scattered_ids(0, 100_000))) == 100_000


def test_a_zipf_rank_twice_as_deep_comes_half_as_often() -> None:
    ranks = zipf_ranks(np.random.default_rng(0), 400_000, 1000, 1.0)
    counts = np.bincount(ranks, minlength=1000)
    assert np.allclose(counts[[1, 3, 7]] / counts[0], [1 / 2, 1 / 4, 1 / 8], rtol=0.05)


def test_positions_come_again_with_their_seed() -> None:
    for distribution in ("uniform", "zipf"):
        drawn = positions(distribution, 1000, 50, seed=3)
        assert drawn.min() >= 0
        assert drawn.max() < 50
        assert np.array_equal(drawn, positions(distribution, 1000, 50, seed=3))


def test_a_twentieth_of_a_churning_stream_was_never_seen_before() -> None:
    seen: set[int] = set()
    num_new = 0
    for number in range(20):
        ids = churn_stream(5000, population=500, new_share=0.05, seed=number, first_new=5000 * number).tolist()
        num_new += len(set(ids) - seen)
        seen |= set(ids)
    assert 0.05 <= num_new / 100_000 <= 0.056  # old ids are new once, too
