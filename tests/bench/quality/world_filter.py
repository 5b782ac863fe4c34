"""How well simulated clicks can be predicted from clicks at all: by a filter that is told what a learner must find out.

It knows the world but for its users, its items and the preferences that drift, and how large those are and how fast
they drift. What it still does not know nobody knows before the clicks.
"""

# N clicks, S segments, G categories, R rank of a preference
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from springtide.app.tools.simulated_world import (
    AFFINITY,
    DRIFTING,
    ITEM,
    USER,
    ItemTraits,
    SimulatorConfig,
    hash_normal,
)
from springtide.app.tools.simulator import ClickGenerator
from tests.bench.quality.simulated_log import START_MS

Floats = npt.NDArray[np.float64]


class Observed(NamedTuple):
    """Clicks, and what the filter knows of each."""

    user_N: npt.NDArray[np.int64]
    item_N: npt.NDArray[np.int64]
    segment_N: npt.NDArray[np.int64]
    traits_NR: Floats  # of the item's category: a segment's preference for it is a sum of R such products
    constant_N: Floats  # the part of the logit that is no secret
    clicked_N: npt.NDArray[np.bool_]
    variance_R: Floats  # of the segments' preferences, over time


def filtered_logits(num_samples: int, *, seed: int = 0) -> Floats:
    """Return a logit for each of the clicks of `simulate_log`, from before the filter learned it."""
    config = SimulatorConfig(seed=seed)
    seen = observe(num_samples, config)
    logits_N: Floats = _filter(
        *seen, USER**2, ITEM**2, AFFINITY**2, config.num_users, config.num_items, config.num_segments,
        0.5 ** (1.0 / (config.rate * config.half_life_seconds)),
    )  # fmt: skip
    return logits_N[:num_samples]


def observe(num_samples: int, config: SimulatorConfig) -> Observed:
    """Draw the clicks of `simulate_log` again."""
    generator = ClickGenerator(config, start_ms=START_MS)
    world = generator.world
    traits_GR = world.category_GR - world.category_GR.mean(axis=0)
    chunks, states = [], []
    for _ in range(-(-num_samples // ClickGenerator.CHUNK)):
        clicks = generator.take_chunk()
        shown = clicks.impressions
        like_SG = DRIFTING * world.preferences(int(clicks.ts_N[0]))
        states.append(np.linalg.lstsq(traits_GR, like_SG.T, rcond=None)[0])
        hidden_N = like_SG[shown.segment_N, shown.category_N] + USER * world.user_U[shown.user_N]
        hidden_N += ITEM * ItemTraits(shown.item_N, config).quality_N
        hidden_N += AFFINITY * hash_normal(shown.user_N * 1_000_003 + shown.item_N, config.seed + 7)
        logit_N = np.log(shown.probability_N) - np.log1p(-shown.probability_N)
        columns = shown.user_N, shown.item_N, shown.segment_N, traits_GR[shown.category_N], logit_N - hidden_N
        chunks.append((*columns, clicks.click_N))
    return Observed(*(np.concatenate(parts) for parts in zip(*chunks, strict=True)), np.var(states, axis=(0, 2)))


@njit
def _filter(
    user_N: Any,
    item_N: Any,
    segment_N: Any,
    traits_NR: Any,
    constant_N: Any,
    clicked_N: Any,
    variance_R: Any,
    user_variance: Any,
    item_variance: Any,
    affinity_variance: Any,
    num_users: Any,
    num_items: Any,
    num_segments: Any,
    keep: Any,
) -> Any:
    """Extended Kalman filter of independent users, items and segments; `keep`: of a preference from click to click."""
    num_samples, rank = traits_NR.shape
    mean_U, variance_U = np.zeros(num_users), np.full(num_users, user_variance)
    mean_I, variance_I, newest_I = np.zeros(num_items), np.full(num_items, item_variance), np.full(num_items, -1)
    mean_SR, covariance_SRR = np.zeros((num_segments, rank)), np.zeros((num_segments, rank, rank))
    last_S = np.zeros(num_segments, np.int64)
    for s in range(num_segments):
        for i in range(rank):
            covariance_SRR[s, i, i] = variance_R[i]
    logits_N, gain_R = np.zeros(num_samples), np.zeros(rank)
    for n in range(num_samples):
        user, place, segment = user_N[n], item_N[n] % num_items, segment_N[n]
        if newest_I[place] != item_N[n]:  # the item has been replaced
            newest_I[place], mean_I[place], variance_I[place] = item_N[n], 0.0, item_variance
        kept, last_S[segment] = keep ** (n - last_S[segment]), n
        logit, variance = constant_N[n] + mean_U[user] + mean_I[place], affinity_variance
        variance += variance_U[user] + variance_I[place]
        for i in range(rank):
            mean_SR[segment, i] *= kept
            for j in range(rank):
                covariance_SRR[segment, i, j] *= kept * kept
            covariance_SRR[segment, i, i] += variance_R[i] * (1.0 - kept * kept)
        for i in range(rank):
            gain_R[i] = 0.0
            for j in range(rank):
                gain_R[i] += covariance_SRR[segment, i, j] * traits_NR[n, j]
            logit += traits_NR[n, i] * mean_SR[segment, i]
            variance += traits_NR[n, i] * gain_R[i]
        logits_N[n] = logit / np.sqrt(1.0 + variance * np.pi / 8.0)  # the mean probability (MacKay 1992)
        p = 1.0 / (1.0 + np.exp(-logit))
        information = p * (1.0 - p) / (1.0 + p * (1.0 - p) * variance)
        step = (clicked_N[n] - p) / (1.0 + p * (1.0 - p) * variance)
        for i in range(rank):
            mean_SR[segment, i] += gain_R[i] * step
            for j in range(rank):
                covariance_SRR[segment, i, j] -= information * gain_R[i] * gain_R[j]
        mean_U[user] += variance_U[user] * step
        variance_U[user] -= information * variance_U[user] ** 2
        mean_I[place] += variance_I[place] * step
        variance_I[place] -= information * variance_I[place] ** 2
    return logits_N
