"""The simulated world: users, items and drifting preferences, as a function of the seed and the time."""

# N impressions, U users, I item slots, S segments, G categories, R rank of a preference
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from springtide_client.system.settings import FINITE, Settings

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STEP_MS = 1_000
MEMORY_HALF_LIVES = 20  # older innovations weigh less than 1e-6


class SimulatorConfig(Settings, frozen=True, kw_only=True):
    """The simulated world: its size, how fast it changes, how many impressions per second."""

    seed: int = 0
    rate: Annotated[float, Meta(gt=0, extra=FINITE)] = 3_000.0  # impressions per second
    num_users: Annotated[int, Meta(ge=1)] = 100_000
    num_items: Annotated[int, Meta(ge=1)] = 20_000
    user_exponent: float = 0.9  # of Zipf's law
    item_exponent: float = 0.7
    replaced_per_minute: Annotated[float, Meta(ge=0, le=1)] = 0.01  # share of the items that are replaced by new ones
    half_life_seconds: Annotated[float, Meta(gt=0)] = 120.0  # of the autocorrelation of preferences
    num_segments: int = 24
    num_categories: int = 40
    num_countries: int = 12
    num_publishers: int = 300
    num_tags: int = 60
    num_placements: int = 6
    num_devices: int = 4


class Drift:
    """An array of Ornstein-Uhlenbeck processes with one step per second.

    The state at a time is the sum of all seconds' normal innovations, each halved every half-life. So it does not
    depend on when the simulator started: after a restart the world is where it would have been.
    """

    def __init__(self, shape: tuple[int, ...], *, seed: int, half_life_seconds: float) -> None:
        self._shape = shape
        self._seed = seed
        self._decay = 0.5 ** (STEP_MS / 1_000 / half_life_seconds)
        self._memory = int(MEMORY_HALF_LIVES * half_life_seconds * 1_000 / STEP_MS)
        self._step: int | None = None
        self._state = np.zeros(shape)

    def at(self, now_ms: int) -> npt.NDArray[np.float64]:
        """Return the state at a Unix time in ms, with unit variance per element; constant within a second."""
        step = now_ms // STEP_MS
        if self._step is None or not 0 <= step - self._step <= self._memory:
            self._step = step - self._memory
            self._state = np.zeros(self._shape)
        fresh = (1.0 - self._decay**2) ** 0.5
        while self._step < step:
            self._step += 1
            normals = np.random.default_rng((self._seed, self._step)).standard_normal(self._shape)
            self._state = self._decay * self._state + fresh * normals
        return self._state


RANK = 3
CONSTANT_RANK = 2  # of the preferences that do not drift
NUM_TAGS_OF_AN_ITEM = 3

BASE = -0.9  # the mean logit
# standard deviations of the terms of the logit
DRIFTING = 1.25  # segment x category, the term that drifts
COUNTRY_TAGS = 0.35  # country x the item's tags
DEVICE_PLACEMENT = 0.3
PRICE = 0.45  # segment x price
USER, ITEM, PLACEMENT = 0.25, 0.25, 0.35  # effects of a single field
AFFINITY = 0.15  # user x item: unpredictable, because the same pair is hardly ever seen twice


@dataclass(frozen=True)
class Impressions:
    """Items shown to users, and the true probability of a click."""

    user_N: Ints
    segment_N: Ints
    country_N: Ints
    device_N: Ints
    placement_N: Ints
    item_N: Ints
    category_N: Ints
    publisher_N: Ints
    tags_NT: Ints  # -1 where an item has fewer
    price_N: Floats
    item_age_hours_N: Floats
    probability_N: Floats


class World:
    """Draws impressions, with the probability of a click on each."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config = config
        random = np.random.default_rng((config.seed, 1))
        self._user_cdf = zipf_cdf(config.num_users, config.user_exponent)
        self._slot_cdf = zipf_cdf(config.num_items, config.item_exponent)
        self._segment_U = random.integers(0, config.num_segments, config.num_users)
        self._country_U = np.searchsorted(zipf_cdf(config.num_countries, 1.0), random.random(config.num_users))
        self.user_U = random.standard_normal(config.num_users)
        self._lifetime_ms = 60_000 / config.replaced_per_minute if config.replaced_per_minute else np.inf
        self._birth_I = random.random(config.num_items)  # as a fraction of a lifetime
        self.category_GR = unit_rows(random, config.num_categories, RANK)
        self._country_CR = unit_rows(random, config.num_countries, CONSTANT_RANK)
        self._tag_TR = random.standard_normal((config.num_tags, CONSTANT_RANK))
        self._device_DP = random.standard_normal((config.num_devices, config.num_placements))
        self._placement_P = standardize(random.standard_normal(config.num_placements))
        self._price_S = standardize(random.standard_normal(config.num_segments))
        self._drift = Drift(
            (config.num_segments, RANK), seed=config.seed + 1, half_life_seconds=config.half_life_seconds
        )

    def items_at(self, slots_N: Ints, now_ms: int) -> tuple[Ints, Floats]:
        """Return the items now in the slots, and their ages in hours. A slot gets a new item each lifetime."""
        if not np.isfinite(self._lifetime_ms):
            return slots_N, np.full(len(slots_N), now_ms / 3.6e6 % 1000)
        lives_N = now_ms / self._lifetime_ms + self._birth_I[slots_N]
        generation_N = np.floor(lives_N).astype(np.int64)
        age_hours_N = (lives_N - generation_N) * self._lifetime_ms / 3.6e6
        return generation_N * self.config.num_items + slots_N, age_hours_N

    def draw(self, num: int, now_ms: int, random: np.random.Generator) -> Impressions:
        """Draw `num` impressions at a Unix time in ms."""
        config = self.config
        user_N = np.searchsorted(self._user_cdf, random.random(num))
        item_N, age_N = self.items_at(np.searchsorted(self._slot_cdf, random.random(num)), now_ms)
        device_N = random.integers(0, config.num_devices, num)
        placement_N = random.integers(0, config.num_placements, num)
        segment_N, country_N = self._segment_U[user_N], self._country_U[user_N]
        traits = ItemTraits(item_N, config)
        like_SG = self.preferences(now_ms)
        price_S, tag_CT = self._price_S, self._constant_preferences()
        logit_N = (
            BASE
            + DRIFTING * like_SG[segment_N, traits.category_N]
            + COUNTRY_TAGS * mean_of_tags(tag_CT, country_N, traits.tags_NT)
            + DEVICE_PLACEMENT * self._device_DP[device_N, placement_N]
            + PRICE * price_S[segment_N] * traits.price_z_N
            + USER * self.user_U[user_N]
            + ITEM * traits.quality_N
            + PLACEMENT * self._placement_P[placement_N]
            + AFFINITY * hash_normal(user_N * 1_000_003 + item_N, config.seed + 7)
        )
        return Impressions(
            user_N=user_N,
            segment_N=segment_N,
            country_N=country_N,
            device_N=device_N,
            placement_N=placement_N,
            item_N=item_N,
            category_N=traits.category_N,
            publisher_N=traits.publisher_N,
            tags_NT=traits.tags_NT,
            price_N=np.asarray(np.exp(2.5 + 0.8 * traits.price_z_N).round(2), dtype=np.float64),
            item_age_hours_N=np.round(age_N, 4),
            probability_N=1.0 / (1.0 + np.exp(-logit_N)),
        )

    def preferences(self, now_ms: int) -> Floats:
        """Return the preference of each segment for each category, with unit variance and zero row and column means."""
        like_SG = self._drift.at(now_ms) @ self.category_GR.T
        like_SG = like_SG - like_SG.mean(axis=0) - like_SG.mean(axis=1)[:, None] + like_SG.mean()
        return np.asarray(like_SG / like_SG.std())

    def _constant_preferences(self) -> Floats:
        tag_CT = self._country_CR @ self._tag_TR.T
        return np.asarray((tag_CT - tag_CT.mean(axis=0)) / tag_CT.std())


class ItemTraits:
    """The attributes of items, as functions of their ids."""

    def __init__(self, item_N: Ints, config: SimulatorConfig) -> None:
        seed = config.seed
        self.category_N = (hash_uniform(item_N, seed + 11) * config.num_categories).astype(np.int64)
        self.publisher_N = (hash_uniform(item_N, seed + 12) ** 2 * config.num_publishers).astype(np.int64)
        self.quality_N = hash_normal(item_N, seed + 13)
        self.price_z_N = hash_normal(item_N, seed + 14)
        num_tags_N = 1 + (hash_uniform(item_N, seed + 15) * NUM_TAGS_OF_AN_ITEM).astype(np.int64)
        tags = [(hash_uniform(item_N, seed + 20 + t) * config.num_tags).astype(np.int64) for t in range(3)]
        self.tags_NT = np.where(np.arange(3) < num_tags_N[:, None], np.stack(tags, axis=1), -1)


def mean_of_tags(like_CT: Floats, country_N: Ints, tags_NT: Ints) -> Floats:
    """Return the country's mean preference for an item's tags, scaled to unit variance for any number of tags."""
    has_NT = tags_NT >= 0
    total_N = (like_CT[country_N[:, None], np.maximum(tags_NT, 0)] * has_NT).sum(axis=1)
    return np.asarray(total_N / np.sqrt(has_NT.sum(axis=1)))


def zipf_cdf(num: int, exponent: float) -> Floats:
    """Return the cumulative weights of ranks 1..num under Zipf's law."""
    weights = np.arange(1, num + 1, dtype=np.float64) ** -exponent
    total: Floats = np.cumsum(weights / weights.sum())
    total[-1] = 1.0
    return total


def unit_rows(random: np.random.Generator, num: int, rank: int) -> Floats:
    """Return `num` random unit vectors."""
    rows = random.standard_normal((num, rank))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def standardize(values: Floats) -> Floats:
    """Return the values shifted and scaled to mean 0 and variance 1."""
    return np.asarray((values - values.mean()) / values.std())


def hash_uniform(ids_N: Ints, seed: int) -> Floats:
    """Return a number in [0, 1) for each id (splitmix64)."""
    x = ids_N.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return np.asarray((x >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def hash_normal(ids_N: Ints, seed: int) -> Floats:
    """Return a standard normal for each id (Box-Muller)."""
    radius = np.sqrt(-2.0 * np.log1p(-hash_uniform(ids_N, 2 * seed)))
    return np.asarray(radius * np.cos(2.0 * np.pi * hash_uniform(ids_N, 2 * seed + 1)))
