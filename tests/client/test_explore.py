"""Draws are those that their propensities promise, and the same everywhere."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide_client.explore import (
    GREEDY,
    Policy,
    exp,
    expected_reward,
    first_probabilities,
    log,
    rank,
    scores_of,
    uniforms,
)

SCORES_N = np.array([0.3, -1.2, 0.9, 0.9, -0.4])
NUM_REQUESTS = 20_000
POLICIES = {
    "epsilon": Policy(name="epsilon", epsilon=0.3, places=2),
    "softmax": Policy(name="softmax", temperature=0.7, places=2),
}
FINITE = st.floats(-100, 100)
ANY_POLICY = st.builds(
    Policy,
    name=st.sampled_from(["greedy", "epsilon", "softmax"]),
    epsilon=st.floats(0, 1),
    temperature=st.floats(1e-6, 1e3),
    places=st.integers(1, 6),
)


@pytest.fixture(scope="module", params=POLICIES)
def drawn(request):
    """A policy, and its rankings of the same candidates for many request ids."""
    policy = POLICIES[request.param]
    return policy, [rank(SCORES_N, f"request-{n}", 3 << 32, policy) for n in range(NUM_REQUESTS)]


def chi_square(counts_N, probabilities_N):
    """The statistic's distance from its mean in standard deviations, with one degree of freedom fewer than cells."""
    expected_N = counts_N.sum() * probabilities_N
    statistic = ((counts_N - expected_N) ** 2 / expected_N).sum()
    freedom = len(counts_N) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def test_the_first_place_is_drawn_as_often_as_its_propensity_says(drawn) -> None:
    policy, rankings = drawn
    first_N = np.bincount([ranking.order_N[0] for ranking in rankings], minlength=len(SCORES_N))
    probabilities_N = first_probabilities(SCORES_N, policy)
    assert {ranking.propensities_P[0] for ranking in rankings} == set(probabilities_N.tolist())
    assert math.isclose(probabilities_N.sum(), 1)
    assert chi_square(first_N, probabilities_N) < 4
    assert chi_square(first_N, first_probabilities(SCORES_N, Policy(name="epsilon", epsilon=0.35))) > 4


def test_the_second_place_is_drawn_as_its_propensity_says_given_the_first(drawn) -> None:
    policy, rankings = drawn
    for first in range(len(SCORES_N)):
        left = np.delete(np.arange(len(SCORES_N)), first)
        counts = dict.fromkeys(left.tolist(), 0)
        promised: dict[int, float] = {}
        for ranking in rankings:
            if ranking.order_N[0] == first:
                second = int(ranking.order_N[1])
                counts[second] += 1
                assert promised.setdefault(second, ranking.propensities_P[1]) == ranking.propensities_P[1]
        # the propensity of a place is the probability of a first place among those that are left
        probabilities_N = first_probabilities(SCORES_N[left], policy)
        expected = dict(zip(left.tolist(), probabilities_N.tolist(), strict=True))
        assert all(math.isclose(promised[second], expected[second], rel_tol=1e-14) for second in promised)
        assert chi_square(np.array(list(counts.values())), probabilities_N) < 4


@given(st.lists(FINITE, min_size=1, max_size=8), st.text(max_size=9), st.integers(0, 2**63 - 1), ANY_POLICY)
def test_a_ranking_has_every_candidate_once_and_after_the_drawn_places_by_score(
    scores, request_id, version, policy
) -> None:
    try:
        ranking = rank(scores, request_id, version, policy)
    except UnicodeEncodeError:  # a lone surrogate
        return
    num_drawn = min(policy.places, len(scores))
    assert len(ranking.propensities_P) == num_drawn
    order = ranking.order_N.tolist()
    assert sorted(order) == list(range(len(scores)))
    by_score = sorted(range(len(scores)), key=lambda candidate: (-scores[candidate], candidate))
    assert order[num_drawn:] == [candidate for candidate in by_score if candidate not in order[:num_drawn]]
    assert all(0 <= propensity <= 1 + 1e-12 for propensity in ranking.propensities_P)
    again = rank(scores, request_id, version, policy)
    assert np.array_equal(again.order_N, ranking.order_N)
    assert np.array_equal(again.propensities_P, ranking.propensities_P)
    assert ranking.propensities_P[0] == first_probabilities(scores, policy)[order[0]]
    if policy.name == "greedy":
        assert order == by_score
        assert ranking.propensities_P.tolist() == [1.0] * num_drawn


def test_without_randomness_every_policy_is_greedy() -> None:
    random = np.random.default_rng(0)
    for n in range(200):
        scores_N = np.round(random.normal(0, 2, 7), 1)  # some of them equal
        greedy = rank(scores_N, f"{n}", 1, GREEDY).order_N.tolist()
        assert rank(scores_N, f"{n}", 1, Policy(name="epsilon", epsilon=0, places=7)).order_N.tolist() == greedy
        cold = Policy(name="softmax", temperature=1e-6, places=7)
        cold_N = rank(scores_N, f"{n}", 1, cold).order_N
        assert scores_N[cold_N].tolist() == scores_N[greedy].tolist()  # of equal scores either may be first
        for policy in (GREEDY, Policy(name="epsilon", epsilon=0)):
            assert first_probabilities(scores_N, policy).tolist() == np.eye(7)[greedy[0]].tolist()


def test_softmax_comes_nearer_to_greedy_as_the_temperature_falls() -> None:
    shares = [
        np.mean(
            [
                rank([0.0, 0.5, 0.2], f"{n}", 1, Policy(name="softmax", temperature=temperature)).order_N[0] == 1
                for n in range(1_000)
            ]
        )
        for temperature in (100, 1, 0.1, 0.001)
    ]
    assert 0.28 < shares[0] < 0.39
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_propensities_of_places_stay_exact_where_the_best_candidates_took_all_weight() -> None:
    scores_N = np.array([90.0, -5000.0, -5000.5, -9000.0])
    ranking = rank(scores_N, "r", 1, Policy(name="softmax", places=4))
    assert ranking.order_N[0] == 0
    assert ranking.order_N[3] == 3
    second = 1 / (1 + math.exp(-0.5))
    wanted = [1, second if ranking.order_N[1] == 1 else 1 - second, 1, 1]
    assert ranking.propensities_P == pytest.approx(wanted, rel=1e-14)


def test_equal_scores_go_by_the_index_of_the_candidate() -> None:
    assert rank([1.0, 2.0, 2.0, 1.0], "r", 1).order_N.tolist() == [1, 2, 0, 3]


def test_a_score_that_is_not_finite_is_refused_and_named() -> None:
    for bad, policy in itertools.product((np.nan, np.inf), (GREEDY, *POLICIES.values())):
        with pytest.raises(ValueError, match=f"the score of candidate 1 is {bad}: only finite ones can be ranked"):
            rank([0.0, bad], "r", 1, policy)
        with pytest.raises(ValueError, match="candidate 1"):
            first_probabilities([0.0, bad], policy)
        with pytest.raises(ValueError, match="no candidate to rank: give at least one score"):
            rank([], "r", 1, policy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "thompson"}, 'name must be one of "epsilon", "greedy", "softmax", not "thompson"'),
        ({"temperature": 0}, "temperature must be a finite number of at least 1e-06, not 0"),
        ({"temperature": -1.0}, "temperature must be a finite number of at least 1e-06, not -1.0"),
        ({"temperature": float("inf")}, "temperature must be a finite number"),
        ({"epsilon": 1.5}, "epsilon must be a number from 0 to 1, not 1.5"),
        ({"places": 0}, "places must be a whole number from 1 to 100, not 0"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        Policy(**given)


def test_request_version_and_place_decide_the_numbers_which_never_change() -> None:
    """Written down once: with them, anybody who kept a request id has its draw."""
    assert [number.hex() for number in uniforms("r-17", (1 << 32) + 5, 3).tolist()] == UNIFORMS
    softmax = Policy(name="softmax", temperature=0.7, places=2)
    ranking = rank(scores_of(np.array([0.1, 0.2, 0.05, 0.4], np.float32)), "r-17", (1 << 32) + 5, softmax)
    assert ranking.order_N.tolist() == ORDER
    assert [propensity.hex() for propensity in ranking.propensities_P.tolist()] == PROPENSITIES
    assert uniforms("r-17", 5, 3).tolist() != uniforms("r-17", 6, 3).tolist() != uniforms("r-18", 6, 3).tolist()


UNIFORMS = ["0x1.72902503c08d2p-2", "0x1.ad99ce53bfc1ap-2", "0x1.463be21f91f83p-1"]
ORDER = [3, 1, 0, 2]
PROPENSITIES = ["0x1.7b31e0ca7194bp-1", "0x1.6812b52add70dp-1"]


def test_uniforms_are_uniform_and_do_not_depend_on_each_other() -> None:
    numbers_RN = np.array([uniforms(f"{n}", 7, 16) for n in range(4_000)])
    assert numbers_RN.min() > 0
    assert numbers_RN.max() < 1
    counts, _ = np.histogram(numbers_RN, 64, (0, 1))
    assert chi_square(counts, np.full(64, 1 / 64)) < 4
    between = np.corrcoef(numbers_RN.T)[~np.eye(16, dtype=bool)]
    assert np.abs(between).max() < 5 / math.sqrt(len(numbers_RN))
    following = np.corrcoef(numbers_RN[:-1].ravel(), numbers_RN[1:].ravel())[0, 1]
    assert abs(following) < 4 / math.sqrt(numbers_RN.size)


@given(st.lists(st.floats(2.0**-160, 2.0**60), min_size=1))
def test_log_is_that_of_numpy_within_its_last_bits(numbers) -> None:
    assert log(np.array(numbers)) == pytest.approx(np.log(numbers), rel=1e-15, abs=1e-15)


@given(st.lists(st.floats(-700, 0), min_size=1))
def test_exp_is_that_of_numpy_within_its_last_bits(numbers) -> None:
    assert exp(np.array(numbers)) == pytest.approx(np.exp(numbers), rel=1e-15)
    assert exp(np.array([-np.inf, -746.0, 0.0])).tolist() == [0, 0, 1]


def test_scores_keep_the_order_of_predictions_and_are_finite() -> None:
    one = np.float32(1)
    given = np.array([0, 1e-45, 1e-38, 0.25, 0.5, np.nextafter(one, np.float32(0)), 1], np.float32)
    scores_N = scores_of(given)
    assert np.isfinite(scores_N).all()
    assert (np.diff(scores_N) > 0).all()
    assert scores_N[3:5] == pytest.approx([-math.log(3), 0], abs=1e-15)
    assert scores_of(given.tolist()).tolist() == scores_N.tolist()


def test_the_expected_reward_is_that_of_the_first_place() -> None:
    rewards = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert expected_reward(first_probabilities(SCORES_N, GREEDY), rewards) == 0.3
    uniform = first_probabilities(SCORES_N, Policy(name="epsilon", epsilon=1))
    assert expected_reward(uniform, rewards) == pytest.approx(0.3)
