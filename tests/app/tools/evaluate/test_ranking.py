"""Ranking metrics of evaluations: by plain loops, beside the trainer's own, and paired with errors by user."""

import dataclasses

import msgspec
import numpy as np
import pytest

from springtide.app.scores.ranking import EVENT_MS, RankingScores
from springtide.app.tools.evaluate.comparison import compare
from springtide.app.tools.evaluate.ranking import (
    difference_lines,
    ranking_differences,
    ranking_documents,
    ranking_lines,
    values_by_group,
)
from springtide.app.tools.evaluate.scores import EvaluatedSamples
from springtide.kernels.cpu.open_groups import DAY_MS
from springtide_client.keys import MISSING_ID
from tests.app.scores.test_ranking import pass_time

AT = (2, 5)


def samples(seed: int = 0, noise: float = 1.0, num: int = 3000, users: int = 60) -> EvaluatedSamples:
    """Requests of six samples in a row; users come again on other days; the same for every seed but for the noise."""
    rng = np.random.default_rng(7)
    request_N = np.arange(num) // 6 + 100
    user_N = np.repeat(rng.integers(0, users, num // 6 + 1), 6)[:num]
    user_N = np.where(user_N == 3, MISSING_ID, user_N)
    truth_N = rng.normal(size=num) + rng.normal(size=users)[np.where(user_N < 0, 0, user_N)]
    labels_N = (rng.random(num) < 1 / (1 + np.exp(-truth_N))).astype(np.float32)
    labels_N[rng.random(num) < 0.02] = np.nan
    logits_N = (truth_N + noise * np.random.default_rng(seed).normal(size=num)).astype(np.float32)
    event_ms_N = np.arange(num) // 6 * (DAY_MS // 40)
    groups = {"ranking.request": request_N, "ranking.group": user_N, EVENT_MS: event_ms_N}
    ones_N = np.ones(num, np.float32)
    return EvaluatedSamples(logits_N[:, None], labels_N[:, None], ones_N, np.arange(num), groups=groups)


@pytest.mark.parametrize("kind", ["request", "group"])
def test_metrics_are_those_of_a_trainer(kind: str) -> None:
    each = samples()
    scores = RankingScores(1, AT, 8 << 20, 1000, is_daily=kind == "group")
    arrays = {"logits": each.logits_NL, "labels": each.labels_NL, "weights": each.weights_N}
    scores.add(each.groups[f"ranking.{kind}"], arrays | {EVENT_MS: each.groups[EVENT_MS]})
    pass_time(scores)
    expected, found = scores.document(0)["whole"], ranking_documents(each, AT)[kind]
    for name in ("groups", "samples", "samples_with_both"):
        assert found[name] == pytest.approx(expected[name])
    pairs = [(found[name], expected[name]) for name in ("gauc", "auc", "mrr")]
    pairs += [(found[name][k], expected[name][k]) for name in ("ndcg", "recall") for k in ("2", "5")]
    for one, other in pairs:
        assert one["value"] == pytest.approx(other["value"], abs=1e-6)
        assert one["standard_error"] == pytest.approx(other["standard_error"], rel=1e-4)


def test_samples_without_groups_and_values_have_no_ranking() -> None:
    each = samples()
    plain = EvaluatedSamples(each.logits_NL, each.labels_NL, each.weights_N, each.row_N)
    assert ranking_documents(plain, AT) == {}
    values = EvaluatedSamples(each.logits_NL, each.labels_NL, each.weights_N, each.row_N, frozenset({0}), each.groups)
    assert values_by_group(values, "request", AT) is None


def test_a_difference_is_that_of_the_means_and_its_error_is_paired() -> None:
    one, other = samples(1, 2.0), samples(2, 0.2)
    found = ranking_differences(one, other, AT)
    before, after = ranking_documents(one, AT), ranking_documents(other, AT)
    for kind in ("request", "group"):
        assert found[kind]["gauc"]["value"] == pytest.approx(
            after[kind]["gauc"]["value"] - before[kind]["gauc"]["value"]
        )
        gained = after[kind]["ndcg"]["5"]["value"] - before[kind]["ndcg"]["5"]["value"]
        assert found[kind]["ndcg@5"]["value"] == pytest.approx(gained)
        assert found[kind]["gauc"]["value"] > 3 * found[kind]["gauc"]["standard_error"] > 0
    assert ranking_differences(one, one, AT)["request"]["mrr"] == {"value": 0, "standard_error": 0}
    (line, *_) = difference_lines(found)
    assert line.startswith("2 minus 1, by request: GAUC +0.")
    assert "NDCG@5 +0." in line
    assert "recall@2 " in line
    num_known = int((~np.isnan(one.labels_NL)).sum())
    assert ranking_lines(before)[0] == f"by request, 500 with {num_known:,} samples:"


def test_errors_by_user_are_the_spread_over_draws_of_users() -> None:
    """What one model gains over another differs by user, so a user's requests say less than as many users would."""
    rng, gains, errors, plain_errors = np.random.default_rng(0), [], [], []
    num_users, num_each = 30, 60
    user_N = np.repeat(np.arange(num_users), num_each)
    groups = {"ranking.group": user_N, "ranking.request": np.arange(len(user_N)) // 6, EVENT_MS: np.zeros(len(user_N))}
    groups = {name: array.astype(np.int64) for name, array in groups.items()}
    for _ in range(200):
        truth_N = rng.normal(size=len(user_N))
        labels_NL = (rng.random(len(user_N)) < 1 / (1 + np.exp(-truth_N))).astype(np.float32)[:, None]
        known_N = rng.choice([0.0, 2.0], num_users)[user_N]  # the second model knows some users
        logits = [rng.normal(size=len(user_N)), known_N * truth_N + rng.normal(size=len(user_N))]
        ones_N, row_N = np.ones(len(user_N), np.float32), np.arange(len(user_N))
        one, other = (
            EvaluatedSamples(each[:, None].astype(np.float32), labels_NL, ones_N, row_N, groups=groups)
            for each in logits
        )
        ranking, whole = ranking_differences(one, other, AT)["request"]["gauc"], compare(one, other)
        gains.append([ranking["value"], whole.auc, whole.logloss])
        errors.append([ranking["standard_error"], whole.auc_standard_error, whole.logloss_standard_error])
        plain = [EvaluatedSamples(each.logits_NL, labels_NL, ones_N, row_N) for each in (one, other)]
        plain_errors.append(compare(*plain).auc_standard_error)
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(gains, axis=0), rtol=0.2)
    assert np.mean(plain_errors) < 0.8 * np.std(gains, axis=0)[1]


def test_two_evaluations_are_compared_by_the_groups_of_the_first() -> None:
    one, other = samples(1, 2.0), samples(2, 0.2)
    changed = dict(other.groups) | {"ranking.request": np.arange(len(other)) // 50}
    weights_N = (np.arange(len(other)) % 3 > 0).astype(np.float32)
    another = dataclasses.replace(other, groups=changed, weights_N=weights_N)
    assert ranking_differences(one, another, AT) == ranking_differences(one, other, AT)
    users = {name: array for name, array in one.groups.items() if name != "ranking.group"}
    without = dataclasses.replace(one, groups=users)
    assert ranking_differences(without, other, AT)["request"] == ranking_differences(one, other, AT)["request"]
    msgspec.json.encode(ranking_differences(one, other, AT))  # plain numbers


def test_users_that_are_missing_are_others_each_time() -> None:
    one, other = samples(1, 2.0), samples(2, 0.2)
    nobody = dict(one.groups) | {"ranking.group": np.full(len(one), MISSING_ID)}
    nothing = {name: array for name, array in one.groups.items() if name != "ranking.group"}
    found = [
        ranking_differences(dataclasses.replace(one, groups=groups), dataclasses.replace(other, groups={}), AT)[
            "request"
        ]
        for groups in (nobody, nothing)
    ]
    assert found[0] == found[1]
