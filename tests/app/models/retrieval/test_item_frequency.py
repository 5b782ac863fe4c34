import numpy as np
import pytest
import torch

from springtide.app.models.retrieval.item_frequency import ItemFrequency


def observe(frequency, ids):
    frequency.observe(frequency.after(torch.as_tensor(ids)))


def shares(frequency, ids):
    ids = torch.as_tensor(ids)
    return frequency.log_probabilities(ids, frequency.after(ids[:0])).exp().numpy()


def test_estimates_find_the_shares_of_items_whatever_the_size_of_batches():
    draw = np.random.default_rng(0)
    wanted = np.array([0.5, 0.3, 0.15, 0.05])
    items = np.array([3, -8, 2**62, 17])
    stream = items[draw.choice(4, 20_000, p=wanted)]
    for size in (64, 1_000):
        frequency = ItemFrequency(num_buckets=1 << 10)
        for start in range(0, len(stream), size):
            observe(frequency, stream[start : start + size])
        np.testing.assert_allclose(shares(frequency, items), wanted, rtol=0.5)
        assert int(frequency.num_samples_1[0]) == len(stream)


def test_an_items_estimate_follows_its_drift():
    frequency = ItemFrequency(num_buckets=1 << 10)
    for _ in range(100):
        observe(frequency, [5, *range(100, 199)])  # one in a hundred
    before = shares(frequency, [5])[0]
    for _ in range(100):
        observe(frequency, [5] * 50 + list(range(100, 150)))
    assert before == pytest.approx(0.01, rel=0.2)
    assert shares(frequency, [5])[0] == pytest.approx(0.5, rel=0.2)


def test_one_step_equals_the_formula_of_the_paper():
    """Item 5 came at sample 10, its average gap is 10; it comes again 6 samples later, at rate 0.05."""
    frequency = ItemFrequency(num_buckets=16, num_hashes=1)
    observe(frequency, [5, *[6] * 9])
    assert shares(frequency, [5])[0] == pytest.approx(1 / 10)
    observe(frequency, [5, *[6] * 5])
    assert shares(frequency, [5])[0] == pytest.approx(1 / (0.95 * 10 + 0.05 * 6))


def test_two_items_in_one_bucket_are_told_apart_by_another_hash():
    frequency = ItemFrequency(num_buckets=16)
    buckets_MN = frequency.buckets(torch.arange(400))
    same = [n for n in range(1, 400) if buckets_MN[0, n] == buckets_MN[0, 0] and buckets_MN[1, n] != buckets_MN[1, 0]]
    for _ in range(100):
        observe(frequency, [0, *[same[0]] * 9])
    assert shares(frequency, [0])[0] == pytest.approx(0.1, rel=0.2)


def test_a_number_of_buckets_that_no_hash_gives_is_an_error():
    with pytest.raises(ValueError, match="power of two, not 1000"):
        ItemFrequency(num_buckets=1000)
