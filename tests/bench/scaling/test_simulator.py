"""The simulator against cases that can be computed by hand."""

import numpy as np
import pytest

from tests.bench.scaling.simulator import Link, Rank, Workload, forecast

EVEN = Workload(np.full(1000, 0.001), ids_a_sample=2, row_bytes=64, logged_row_bytes=100, dense_bytes=1000)
QUIET = Rank(step_seconds=0.001, sample_seconds=1e-5, key_seconds=0.0, spread=0.0)
FREE = Link(bytes_per_second=1e30, message_seconds=0.0)


def test_one_rank_only_computes() -> None:
    alone = forecast(1, 100, QUIET, Link(1.0, 1.0), EVEN)
    assert alone.step_seconds == pytest.approx(0.002)
    assert alone.samples_per_second == pytest.approx(50_000)
    assert alone.bytes_a_sample == 0


def test_without_noise_and_over_a_free_link_ranks_add_up() -> None:
    assert forecast(8, 100, QUIET, FREE, EVEN).samples_per_second == pytest.approx(8 * 50_000)


def test_ids_are_counted_once_a_batch() -> None:
    drawn = np.random.default_rng(0).integers(0, 1000, (500, 100 * 2))
    seen = np.mean([len(np.unique(batch)) for batch in drawn])
    assert EVEN.num_unique(100) == pytest.approx(seen, rel=0.01)
    assert EVEN.num_unique(1e9) == pytest.approx(1000)


def test_half_of_the_bytes_travel_between_two_ranks() -> None:
    two = forecast(2, 100, QUIET, FREE, EVEN)
    assert two.bytes_a_sample * 100 == pytest.approx(EVEN.num_unique(100) / 2 * (12 + 64 + 64))


def test_an_id_in_every_batch_makes_its_owner_the_slowest() -> None:
    hot = np.full(1000, 0.5 / 999)
    hot[0] = 0.5
    rank = Rank(step_seconds=0.0, sample_seconds=0.0, key_seconds=1e-6, spread=0.0)
    skewed = Workload(hot, ids_a_sample=2, row_bytes=64, logged_row_bytes=100, dense_bytes=0)
    few, many = (forecast(number, 1, rank, FREE, skewed) for number in (2, 512))
    assert many.waiting / many.compute > 10 * few.waiting / few.compute


def test_messages_take_over_when_there_are_many_ranks() -> None:
    slow = Link(bytes_per_second=1e9, message_seconds=1e-4, post_seconds=1e-4)
    assert forecast(1024, 100, QUIET, slow, EVEN).largest_loss == "messages"
