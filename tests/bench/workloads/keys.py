"""Seeded random keys: uniform, Zipf, and a stream with a constant share of new ids."""

# C distinct ids, K keys of a call
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from springtide_client.keys import hash_keys

Int64Array = npt.NDArray[np.int64]


def scattered_ids(start: int, stop: int) -> Int64Array:
    """Return the ids of the numbers start..stop: distinct, spread over int64."""
    numbers = np.arange(start, stop)
    return hash_keys(np.zeros(len(numbers), np.uint16), numbers).view(np.int64)


def zipf_ranks(random: np.random.Generator, num: int, population: int, exponent: float) -> Int64Array:
    """Return numbers below `population` with frequency proportional to (number + 1) ** -exponent."""
    bounds = _bounds(population, exponent)
    # searching sorted values is many times faster; they are shuffled afterwards
    ranks = np.searchsorted(bounds, np.sort(random.random(num)) * bounds[-1])
    random.shuffle(ranks)
    return np.minimum(ranks, population - 1)


@lru_cache(maxsize=4)
def _bounds(population: int, exponent: float) -> npt.NDArray[np.float64]:
    return np.cumsum(np.arange(1, population + 1, dtype=np.float64) ** -exponent)


def zipf_shares(population: int, exponent: float = 1.05) -> npt.NDArray[np.float64]:
    """Return how frequent each of the numbers of `zipf_ranks` is; the sum is 1."""
    bounds = _bounds(population, exponent)
    return np.diff(bounds, prepend=0.0) / bounds[-1]


def positions(distribution: str, num: int, population: int, *, seed: int) -> Int64Array:
    """Return `num` positions below `population`, "uniform" or "zipf" (1.05), frequent ones anywhere."""
    random = np.random.default_rng(seed)
    if distribution == "uniform":
        return random.integers(0, population, num)
    return random.permutation(population)[zipf_ranks(random, num, population, 1.05)]


def churn_stream(num: int, *, population: int, new_share: float, seed: int, first_new: int) -> Int64Array:
    """Return ids of which `new_share` are new, and the others Zipf 1.05 over `population` old ones.

    The new ones are the numbers from population + first_new on, each once.
    """
    random = np.random.default_rng(seed)
    numbers = zipf_ranks(random, num, population, 1.05)
    new = np.flatnonzero(random.random(num) < new_share)
    numbers[new] = population + first_new + np.arange(len(new))
    return hash_keys(np.zeros(num, np.uint16), numbers).view(np.int64)
