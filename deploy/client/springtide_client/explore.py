"""Exploration: the first places of a list are drawn, each with a probability that is known: its propensity.

A ranking is a function of scores, request id, version and policy, so whoever has the log computes it again. It is made
of hashes and of single additions, products and quotients, which every processor rounds alike: numpy's own log and exp
differ in their last bit between processors. Knows no model and no HTTP.
"""

# N candidates, P places that are drawn, G groups of H coefficients
import math
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from springtide_client.array_types import Float64Array, Indices
from springtide_client.keys import GOLDEN_64, MASK, hash_string, mix64, mix64_array
from springtide_client.system.settings import FINITE, Settings

PolicyName: TypeAlias = Literal["greedy", "epsilon", "softmax"]
Epsilon = Annotated[
    float, Meta(ge=0, le=1, description="Of `epsilon`: the share of places that get any candidate, all alike.")
]
Temperature = Annotated[
    float,
    Meta(
        ge=1e-6,
        extra=FINITE,
        description="Of `softmax`: a candidate is drawn in proportion to exp(log-odds / temperature). 1 draws in "
        "proportion to the odds, less comes nearer to `greedy`.",
    ),
]
Places = Annotated[
    int, Meta(ge=1, le=100, description="How many of the first places are drawn; the others follow by score.")
]
# predictions are float32: those between these differ from 0 and 1
LEAST, MOST = 2.0**-150, 1 - 2.0**-25
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # their sum is log 2
LEAST_EXPONENT = -800.0  # exp of less is 0
LEAST_WEIGHT = 2.0**-500  # smaller ones are made again, before they lose bits
# coefficients by power: log(m) = 2 s (1 + s**2 / 3 + s**4 / 5 + ...) with s = (m - 1) / (m + 1); exp
ATANH_GH = np.array([1 / divisor for divisor in range(1, 24, 2)]).reshape(3, 4)
EXP_GH = np.array([1 / math.factorial(power) for power in range(16)]).reshape(4, 4)


class Policy(Settings, frozen=True, kw_only=True):
    """How the first places of a list are drawn, one after the other, from the candidates that are left.

    `greedy`: the best. `epsilon`: with this probability any of them, all alike, else the best. `softmax`: each in
    proportion to exp(score / temperature). Of equal scores the candidate with the lower index is the better one.
    """

    name: PolicyName = "greedy"
    epsilon: Epsilon = 0.1
    temperature: Temperature = 1.0
    places: Places = 1


GREEDY = Policy()


class Ranking(NamedTuple):
    """Candidates by place, and the probability of the one at each drawn place, given those above it."""

    order_N: Indices
    propensities_P: Float64Array


def rank(scores_N: npt.ArrayLike, request_id: str, version: int, policy: Policy = GREEDY) -> Ranking:
    """Rank candidates by a policy; equal arguments give an equal ranking, bit by bit.

    `scores_N`: log-odds, as `scores_of` makes them of predictions. ValueError without one, or if one is not finite.
    """
    scores_N = _finite(scores_N)
    by_score_N = np.argsort(-scores_N, kind="stable")
    num_drawn = min(policy.places, len(scores_N))
    if policy.name == "greedy":
        return Ranking(by_score_N, np.ones(num_drawn))
    if policy.name == "epsilon":
        return _rank_by_epsilon(by_score_N, uniforms(request_id, version, 2 * num_drawn), policy.epsilon)
    # the largest of score / temperature + Gumbel noise is a draw from the softmax, the second one a draw from the rest
    # (Kool, van Hoof, Welling 2019)
    scaled_N = _scaled(scores_N, policy)
    keys_N = scaled_N - log(-log(uniforms(request_id, version, len(scores_N))))
    drawn_P = np.argsort(-keys_N, kind="stable")[:num_drawn]
    propensities_P, weights_N = np.empty(num_drawn), exp(scaled_N)
    for place, candidate in enumerate(drawn_P.tolist()):
        if weights_N.max() < LEAST_WEIGHT:  # beside the ones drawn before
            weights_N = exp(scaled_N - scaled_N.max())
        propensities_P[place] = weights_N[candidate] / math.fsum(weights_N.tolist())
        weights_N[candidate], scaled_N[candidate] = 0.0, -np.inf
    is_left_N = np.ones(len(scores_N), np.bool_)
    is_left_N[drawn_P] = False
    return Ranking(np.concatenate([drawn_P, by_score_N[is_left_N[by_score_N]]]), propensities_P)


def first_probabilities(scores_N: npt.ArrayLike, policy: Policy) -> Float64Array:
    """Return the probability of each candidate to be the first, float64 (N). ValueError as `rank` raises it."""
    scores_N = _finite(scores_N)
    if policy.name == "softmax":
        weights_N = exp(_scaled(scores_N, policy))
        return weights_N / math.fsum(weights_N.tolist())
    epsilon = policy.epsilon if policy.name == "epsilon" else 0.0
    probabilities_N = np.full(len(scores_N), epsilon / len(scores_N))
    probabilities_N[np.argmax(scores_N)] += 1 - epsilon
    return probabilities_N


def expected_reward(probabilities_N: Float64Array, rewards_N: npt.ArrayLike) -> float:
    """Return what the first place brings on average, by the predicted reward of each candidate."""
    return math.fsum((probabilities_N * np.asarray(rewards_N, np.float64)).tolist())


def scores_of(probabilities_N: npt.ArrayLike) -> Float64Array:
    """Return the log-odds of predicted probabilities (float32, or as /v1/predict writes them), float64 (N); finite."""
    p_N = np.clip(np.asarray(probabilities_N, np.float64), LEAST, MOST)
    return log(p_N / (1 - p_N))


def uniforms(request_id: str, version: int, num: int) -> Float64Array:
    """Return numbers above 0 and below 1, odd multiples of 2**-53: splitmix64, seeded with the request and version."""
    seed = mix64((hash_string(request_id.encode()) & MASK) ^ mix64(version & MASK))
    state = np.arange(1, num + 1, dtype=np.uint64) * GOLDEN_64 + np.uint64(seed)
    odd = (mix64_array(state) >> np.uint64(12)) * np.uint64(2) + np.uint64(1)
    return odd.astype(np.float64) * 2.0**-53


def log(x_N: Float64Array) -> Float64Array:
    """Return natural logarithms of positive normal numbers, NaN of NaN: within 1e-15, relative where x is near 1."""
    m_N, e_N = np.frexp(x_N)
    is_low_N = m_N < math.sqrt(0.5)
    m_N, e_N = np.where(is_low_N, 2 * m_N, m_N), e_N - is_low_N
    s_N = (m_N - 1) / (m_N + 1)
    series_N = _polynomial(s_N * s_N, ATANH_GH)
    logs_N: Float64Array = e_N * LN2_HIGH + (2 * s_N * series_N + e_N * LN2_LOW)
    return logs_N


def exp(x_N: Float64Array) -> Float64Array:
    """Return exp of numbers up to 0, -inf too, within 1e-15 of itself."""
    x_N = np.maximum(x_N, LEAST_EXPONENT)
    k_N = np.rint(x_N * (1 / (LN2_HIGH + LN2_LOW)))
    r_N = (x_N - k_N * LN2_HIGH) - k_N * LN2_LOW
    return np.ldexp(_polynomial(r_N, EXP_GH), k_N.astype(np.int32))


def _polynomial(x_N: Float64Array, coefficients_GH: Float64Array) -> Float64Array:
    """Return the sum of coefficients times powers of x: Horner's rule in each group, then over the groups."""
    num_groups, num_powers = coefficients_GH.shape
    groups_GN = np.repeat(coefficients_GH[:, -1:], len(x_N), axis=1)
    for power in range(num_powers - 2, -1, -1):
        groups_GN *= x_N
        groups_GN += coefficients_GH[:, power : power + 1]
    squared_N = x_N * x_N
    step_N = squared_N * squared_N  # H is 4
    sum_N: Float64Array = groups_GN[-1]
    for group in range(num_groups - 2, -1, -1):
        sum_N *= step_N
        sum_N += groups_GN[group]
    return sum_N


def _rank_by_epsilon(by_score_N: Indices, uniforms_2P: Float64Array, epsilon: float) -> Ranking:
    drawn, propensities, left_N = [], [], by_score_N
    for coin, choice in uniforms_2P.reshape(-1, 2).tolist():
        num_left = len(left_N)
        place = int(choice * num_left) if coin < epsilon else 0
        drawn.append(left_N[place])
        propensities.append(epsilon / num_left + (1 - epsilon if place == 0 else 0.0))
        left_N = np.delete(left_N, place)
    return Ranking(np.concatenate([np.array(drawn, np.intp), left_N]), np.array(propensities, np.float64))


def _finite(scores_N: npt.ArrayLike) -> Float64Array:
    scores_N = np.asarray(scores_N, np.float64)
    if not len(scores_N):
        raise ValueError("there is no candidate to rank: give at least one score")
    bad = np.flatnonzero(~np.isfinite(scores_N))
    if len(bad):
        raise ValueError(f"the score of candidate {bad[0]} is {scores_N[bad[0]]}: only finite ones can be ranked")
    return scores_N


def _scaled(scores_N: Float64Array, policy: Policy) -> Float64Array:
    scaled_N: Float64Array = (scores_N - scores_N.max()) / policy.temperature
    return scaled_N
