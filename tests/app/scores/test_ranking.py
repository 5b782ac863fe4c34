"""Ranking scores of requests and of users' days: equal to a plain model, however samples come and whatever stops."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.app.scores.config import RankingRoom, ScoresConfig
from springtide.app.scores.ranking import EVENT_MS, RankingPlan, RankingScores
from springtide.kernels.cpu.open_groups import DAY_MS
from springtide.kernels.cpu.ranking_metrics import group_values
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID, mix64_array
from springtide_client.schema import Schema

AT = (2, 5)
WAIT_MS = 1000
PLENTY = 4 << 20


def draw(num, *, num_groups=40, seed=0, step_ms=300, labels=1):
    """Samples of groups that overlap in time; a tenth is of no group, and some labels are masked."""
    rng = np.random.default_rng(seed)
    event_ms_N = np.cumsum(rng.integers(0, step_ms, num)) + rng.integers(-200, 200, num)
    hash_N = (event_ms_N // 4000 * 3 + rng.integers(0, num_groups, num)).astype(np.int64)
    hash_N[rng.random(num) < 0.1] = MISSING_ID
    labels_NL = (rng.random((num, labels)) < 0.4).astype(np.float32)
    labels_NL[rng.random((num, labels)) < 0.05] = np.nan
    return hash_N, {
        "logits": rng.normal(size=(num, labels)).round(1).astype(np.float32),
        "labels": labels_NL,
        "weights": (rng.random(num) < 0.95).astype(np.float32),
        EVENT_MS: event_ms_N,
    }


def add(scores, hash_N, samples, bounds=()):
    for start, stop in itertools.pairwise(sorted({0, *bounds, len(hash_N)})):
        scores.add(hash_N[start:stop], {name: array[start:stop] for name, array in samples.items()})


def pass_time(scores, num_labels=1):
    """Move the event clock so far that every group has ended, by a sample without one."""
    nothing = np.zeros((1, num_labels), np.float32)
    later = {"logits": nothing, "labels": nothing, "weights": np.ones(1, np.float32), EVENT_MS: np.array([1 << 50])}
    scores.add(np.array([MISSING_ID]), later)


def groups_of(hash_N, samples, *, is_daily):
    """The samples of each group, by a plain loop."""
    found, current, ends, clock = [], {}, {}, -math.inf
    for n, group in enumerate(hash_N.tolist()):
        event_ms = int(samples[EVENT_MS][n])
        clock = max(clock, event_ms)
        if group == MISSING_ID or not samples["weights"][n]:
            continue
        key = (group, event_ms // DAY_MS) if is_daily else group
        if key in current and ends[key] < clock:
            found.append(current.pop(key))
        current.setdefault(key, []).append(n)
        day_end = (event_ms // DAY_MS + 1) * DAY_MS
        ends[key] = max(ends.get(key, 0), (max(day_end, clock) if is_daily else clock) + WAIT_MS)
    return found + list(current.values())


def expected(hash_N, samples, *, is_daily, label=0):
    """Means and standard errors by numpy."""
    chosen = groups_of(hash_N, samples, is_daily=is_daily)
    values, nums = [], []
    for rows in chosen:
        scores, labels = samples["logits"][rows, label].astype(float), samples["labels"][rows, label].astype(float)
        if (num := int((~np.isnan(labels)).sum())) > 0:
            values.append(group_values(scores, labels, np.array([0, len(rows)]), np.array(AT))[0])
            nums.append(num)
    values_GM, weight_G = np.array(values), np.array(nums, float)
    document = {"groups": len(nums), "samples": sum(nums), "ndcg": {}, "recall": {}}
    names = [("gauc", 0), ("auc", 0), ("mrr", 1), ("ndcg 2", 2), ("ndcg 5", 3), ("recall 2", 4), ("recall 5", 5)]
    for name, column in names:
        known = ~np.isnan(values_GM[:, column])
        x, w = values_GM[known, column], weight_G[known] if name == "gauc" else np.ones(known.sum())
        mean = (w * x).sum() / w.sum()
        error = math.sqrt((w**2 * (x - mean) ** 2).sum() * len(x) / (len(x) - 1)) / w.sum()
        document[name] = mean, error
    return document


def assert_equal(found, expected):
    assert found["groups"] == expected["groups"]
    assert found["samples"] == expected["samples"]
    for name, (mean, error) in ((name, each) for name, each in expected.items() if isinstance(each, tuple)):
        metric = found
        for key in name.split():
            metric = metric[key]
        assert metric["value"] == pytest.approx(mean, abs=1e-6), name
        assert metric["standard_error"] == pytest.approx(error, rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize(("is_daily", "step_ms"), [(False, 40), (False, 300), (True, 300), (True, 400_000)])
def test_scores_are_those_of_a_plain_loop_over_groups(is_daily, step_ms):
    hash_N, samples = draw(3000, labels=2, step_ms=step_ms)
    scores = RankingScores(2, AT, PLENTY, WAIT_MS, is_daily=is_daily)
    add(scores, hash_N, samples)
    if not is_daily:
        pass_time(scores, 2)  # the newest requests count once they have ended
    for label in range(2):
        wanted = expected(hash_N, samples, is_daily=is_daily, label=label)
        assert_equal(scores.document(label)["whole"], wanted)
        assert_equal(scores.document(label)["window"], wanted)  # few groups


@settings(max_examples=25, deadline=None)
@given(
    bounds=st.lists(st.integers(0, 2000), max_size=8),
    kills=st.sets(st.integers(0, 2000), max_size=3),
    is_daily=st.booleans(),
    seed=st.integers(0, 3),
    num_bytes=st.sampled_from([1 << 10, PLENTY]),  # few places: groups end early, users are left out
)
def test_batches_and_kills_change_no_bit(bounds, kills, is_daily, seed, num_bytes):
    hash_N, samples = draw(2000, seed=seed, num_groups=900)

    def make():
        return RankingScores(1, AT, num_bytes, WAIT_MS, is_daily=is_daily)

    straight = make()
    add(straight, hash_N, samples)
    scores = make()
    for start, stop in itertools.pairwise(sorted({0, *kills, *bounds, 2000})):
        if start in kills:
            state, scores = scores.arrays(), make()
            scores.restore(state)
        add(scores, hash_N[start:stop], {name: array[start:stop] for name, array in samples.items()})
    for name, array in straight.arrays().items():
        np.testing.assert_array_equal(array, scores.arrays()[name], err_msg=name)
    assert straight.document(0) == scores.document(0)
    assert sum(straight.state_sizes()) == sum(array.nbytes for array in straight.arrays().values())


def test_users_beyond_the_memory_are_sampled_within_three_standard_errors():
    rng = np.random.default_rng(4)
    num_users, num_each = 30_000, 6
    hash_N = rng.permutation(np.repeat(rng.integers(-(2**63), 2**63, num_users), num_each))
    quality_N = np.random.default_rng(5).normal(size=len(hash_N))
    labels = rng.random(len(hash_N)) < 1 / (1 + np.exp(-quality_N))
    samples = {
        "logits": (quality_N + rng.normal(size=len(hash_N))).astype(np.float32)[:, None],
        "labels": labels.astype(np.float32)[:, None],
        "weights": np.ones(len(hash_N), np.float32),
        EVENT_MS: np.linspace(0, 20 * DAY_MS, len(hash_N)).astype(np.int64),
    }
    hash_N = np.where(samples[EVENT_MS] < 19 * DAY_MS, hash_N ^ (samples[EVENT_MS] // DAY_MS), hash_N)
    every = RankingScores(1, AT, 64 << 20, WAIT_MS, is_daily=True)
    some = RankingScores(1, AT, 400_000, WAIT_MS, is_daily=True)
    add(every, hash_N, samples)
    add(some, hash_N, samples)
    every, some = every.document(0), some.document(0)
    assert every["share"] == 1
    assert some["share"] < 1
    for name in ("gauc", "auc", "mrr"):
        gap = some["whole"][name]["value"] - every["whole"][name]["value"]
        assert abs(gap) < 3 * some["whole"][name]["standard_error"]
    assert some["whole"]["groups"] == pytest.approx(every["whole"]["groups"], rel=0.05)


@pytest.mark.parametrize("is_daily", [False, True])
def test_ten_million_users_in_the_bytes(is_daily):
    scores = RankingScores(1, AT, 1 << 20, WAIT_MS, is_daily=is_daily)
    assert scores.num_bytes <= 1 << 20
    num, rng = 500_000, np.random.default_rng(0)
    for _ in range(20):
        samples = {
            "logits": rng.normal(size=(num, 1)).astype(np.float32),
            "labels": (rng.random((num, 1)) < 0.5).astype(np.float32),
            "weights": np.ones(num, np.float32),
            EVENT_MS: np.zeros(num, np.int64),
        }
        scores.add(rng.integers(-(2**63), 2**63, num), samples)
    assert sum(scores.state_sizes()) <= 1 << 20
    document = scores.document(0)
    whole = document["whole"]
    if is_daily:
        assert document["share"] < 0.001
        assert whole["groups"] == pytest.approx(1e7, rel=0.2)  # those left out are stood for
    else:
        assert document["num_ended_early"] == whole["groups"] == 1e7 - document["num_open"]


def test_the_newest_samples_of_a_large_group_count():
    scores = RankingScores(1, AT, PLENTY, WAIT_MS)
    num = 3000
    samples = {
        "logits": np.arange(num, dtype=np.float32)[:, None],
        "labels": np.ones((num, 1), np.float32),
        "weights": np.ones(num, np.float32),
        EVENT_MS: np.zeros(num, np.int64),
    }
    scores.add(np.zeros(num, np.int64), samples)
    pass_time(scores)
    assert scores.document(0)["whole"]["samples"] == 1024


def test_the_window_has_the_newest_groups():
    hash_N = np.repeat(np.arange(300), 2)
    samples = {
        "logits": np.tile([[1.0], [0.0]], (300, 1)).astype(np.float32),
        "labels": np.tile([[1.0], [0.0]], (300, 1)).astype(np.float32),
        "weights": np.ones(600, np.float32),
        EVENT_MS: np.repeat(np.arange(300) * 5000, 2),
    }
    samples["labels"][:400] = 1 - samples["labels"][:400]  # the first 200 groups are the wrong way round
    scores = RankingScores(1, AT, 1 << 14, WAIT_MS)
    add(scores, hash_N, samples)
    document = scores.document(0)
    assert document["whole"]["auc"]["value"] == pytest.approx(99 / 299)
    assert document["window"]["auc"]["value"] > 0.8
    assert document["window"]["groups"] < 130


def test_columns_hold_hashes_and_a_missing_id_stays_missing():
    schema = Schema(labels=("click",), categorical=("user",))
    features = Features(np.array([[1], [MISSING_ID]]), (), np.zeros((2, 0), np.float32))
    plan = RankingPlan("request", "user", AT, PLENTY, WAIT_MS)
    columns = plan.take(features, schema, np.array([5, 6]), np.array([MISSING_ID, 7]), None)
    assert columns["ranking.group"].tolist()[1] == columns["ranking.request"].tolist()[0] == MISSING_ID
    assert columns["ranking.group"][0] != 1
    assert columns[EVENT_MS].tolist() == [5, 6]
    assert RankingPlan().take(features, schema, np.array([5, 6]), None, None) == {}


def test_groups_by_kind_share_the_memory():
    plan = RankingPlan("request", "user", AT, 1 << 20, WAIT_MS)
    both = plan.begin(2)
    assert both.keys() == {"request", "group"}
    assert 0.7 * (1 << 20) < sum(each.num_bytes for each in both.values()) <= 1 << 20


@pytest.mark.parametrize("is_daily", [False, True])
def test_a_group_that_goes_on_and_on_holds_up_no_other(is_daily):
    """A request id that many share, or a user whose day is today among samples of a partition that is behind."""
    num = 3000
    event_ms_N = 20_000 * DAY_MS + np.arange(num) * 1000
    hash_N = np.arange(num) + 1
    hash_N[::7] = 77_777
    if is_daily:
        event_ms_N[1:] -= np.where(np.arange(1, num) % 7 == 0, 0, DAY_MS)
    samples = {
        "logits": np.ones((num, 1), np.float32),
        "labels": np.ones((num, 1), np.float32),
        "weights": np.ones(num, np.float32),
        EVENT_MS: event_ms_N,
    }
    scores = RankingScores(1, AT, PLENTY, WAIT_MS, is_daily=is_daily)
    most = 0
    for start in range(0, num, 100):
        part = slice(start, start + 100)
        scores.add(hash_N[part], {name: array[part] for name, array in samples.items()})
        most = max(most, scores.document(0)["num_open"])
    assert most < 20
    assert scores.document(0)["whole"]["groups"] > 2000


@pytest.mark.parametrize("user", [0, 7])
def test_a_user_who_fills_the_memory_ends_early_and_nothing_hangs(user):
    """The id 0 has the hash 0, which every halving leaves in."""
    hash_of_0_or_7 = int(mix64_array(np.array([user], np.uint64)).astype(np.int64)[0])
    scores = RankingScores(1, AT, 1 << 17, 365 * DAY_MS, is_daily=True)
    num = 1000
    for day in range(12):
        samples = {
            "logits": np.ones((num, 1), np.float32),
            "labels": np.ones((num, 1), np.float32),
            "weights": np.ones(num, np.float32),
            EVENT_MS: np.full(num, day * DAY_MS),
        }
        scores.add(np.full(num, hash_of_0_or_7), samples)
    document = scores.document(0)
    assert document["share"] < 1
    assert (document["num_ended_early"] > 0) == (user == 0)


@pytest.mark.parametrize("num_labels", [1, 10])
@pytest.mark.parametrize("at", [(5, 10), tuple(range(1, 101))])
def test_the_least_bytes_are_kept_and_fewer_are_refused(num_labels, at):
    least = RankingRoom.least_bytes(num_labels, len(at))
    assert 0.8 * least < RankingScores(num_labels, at, least, WAIT_MS).num_bytes <= least
    schema = Schema(labels=tuple(f"label_{n}" for n in range(num_labels)), categorical=("user",))
    size = max(least, 1 << 18)
    ScoresConfig(group="user", at=at, group_bytes=size).check_groups(schema)
    if least > 1 << 18:
        with pytest.raises(ValueError, match=f"group_bytes must be at least {least:,}"):
            ScoresConfig(group="user", at=at, group_bytes=least - 1).check_groups(schema)


def test_where_negatives_are_sampled_nothing_is_said_of_places():
    hash_N, samples = draw(500)
    scores = RankingScores(1, AT, PLENTY, WAIT_MS, is_sampled=True)
    add(scores, hash_N, samples)
    whole = scores.document(0)["whole"]
    assert whole["gauc"]["value"] is not None
    assert whole["mrr"]["value"] is whole["ndcg"]["5"]["value"] is whole["recall"]["2"]["value"] is None
