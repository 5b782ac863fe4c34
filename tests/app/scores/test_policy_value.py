"""What another policy is worth: exact on paper, right on simulated logs, and on one where both policies ran."""

import collections
import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from springtide.app.scores.policy_value import RECENT_REQUESTS, PolicyFields, PolicyTotals, PolicyValue
from springtide_client.explore import GREEDY, Policy, expected_reward, first_probabilities
from tests.support.processes import ROOT

OPEN_BANDIT = ROOT.parent / "shared" / "data" / "open-bandit.parquet"
NAMES = ("reward", "propensity", "probability", "predicted", "value")


def estimates(log, cap):
    """The formulas, in plain Python: (reward, predicted of the shown, propensity, probability, value) by request."""
    w = [min(pt / pl, cap) for _, _, pl, pt, _ in log]
    ips = sum(x * r for x, (r, *_) in zip(w, log, strict=True)) / len(log)
    dr = sum(v + x * (r - q) for x, (r, q, _, _, v) in zip(w, log, strict=True)) / len(log)
    return ips, ips * len(log) / sum(w), dr, sum(w) ** 2 / sum(x * x for x in w)


def random_log(num: int, seed: int = 0) -> np.ndarray:
    """Rewards, propensities, probabilities, predicted rewards and values of random requests, (5, num)."""
    made = np.random.default_rng(seed)
    reward_N = (made.random(num) < 0.3).astype(float)
    return np.array([reward_N, made.uniform(0.05, 1, num), *made.random((3, num))])


def test_the_estimates_are_those_of_the_formulas() -> None:
    columns = random_log(500)
    r, pl, pt, q, v = columns
    for cap in (1.5, 3.0, 1e9):
        found = PolicyValue(cap).observe(*columns).document()
        wanted = estimates(list(zip(r, q, pl, pt, v, strict=True)), cap)
        assert [found[name] for name in ("ips", "snips", "dr", "effective_samples")] == pytest.approx(wanted, rel=1e-12)
        w = np.minimum(pt / pl, cap)
        assert found["ips_error"] == pytest.approx(np.std(w * r) / math.sqrt(500))
        assert found["dr_error"] == pytest.approx(np.std(v + w * (r - q)) / math.sqrt(500))
        residuals = w * (r - found["snips"])
        assert found["snips_error"] == pytest.approx(math.sqrt((residuals**2).sum()) / w.sum())
        assert found["clipped"] == np.mean(pt / pl > cap)
        assert found["mean_weight"] == pytest.approx(w.mean())
        assert found["logged"] == pytest.approx(r.mean())
        assert found["requests"] == 500


def test_sums_are_the_same_bit_by_bit_however_requests_are_split() -> None:
    columns = random_log(300)
    whole = PolicyValue().observe(*columns)
    cuts = sorted(random.Random(1).sample(range(1, 300), 12))
    split = PolicyValue()
    for part in np.split(columns, cuts, axis=1):
        split = split.observe(*part)
    assert split == whole
    halves = [PolicyValue().observe(*part) for part in np.split(columns, 2, axis=1)]
    assert halves[0].plus(halves[1]).document() == pytest.approx(whole.document())
    assert msgspec.json.decode(msgspec.json.encode(whole), type=PolicyValue) == whole


def test_a_weight_of_a_request_counts_it_so_often() -> None:
    columns = random_log(50)
    twice = PolicyValue().observe(*np.repeat(columns, 2, axis=1)).document()
    weighted = PolicyValue().observe(*columns, np.full(50, 2.0)).document()
    for name in ("ips", "snips", "dr", "clipped", "mean_weight", "logged"):
        assert weighted[name] == pytest.approx(twice[name])
    once = PolicyValue().observe(*columns).document()
    for name in ("ips_error", "snips_error", "dr_error", "effective_samples"):  # no more is known
        assert weighted[name] == pytest.approx(once[name])


def test_requests_without_numbers_are_left_out_and_wrong_propensities_are_counted() -> None:
    columns = random_log(8)
    columns[0, 0] = columns[1, 1] = columns[4, 2] = np.nan
    columns[1, 3], columns[1, 4], columns[2, 5] = 0.0, 1.5, -0.1
    found = PolicyValue().observe(*columns)
    assert (found.num, found.num_refused) == (2, 3)
    assert found.document()["ips"] == PolicyValue().observe(*columns[:, 6:]).document()["ips"]
    assert PolicyValue().observe(*columns[:, :3]) == PolicyValue()


def test_without_requests_nothing_is_estimated() -> None:
    found = PolicyValue().document()
    assert (found.pop("requests"), found.pop("refused")) == (0, 0)
    assert set(found.values()) == {None}
    one = PolicyValue().observe(*random_log(1)).document()
    assert one["ips"] is not None
    assert one["ips_error"] is None


def test_values_with_other_caps_are_not_added() -> None:
    with pytest.raises(ValueError, match="caps 10 and 5 cannot be added: use one cap"):
        PolicyValue().plus(PolicyValue(5.0))


@pytest.mark.parametrize("name", ["epsilon", "softmax"])
def test_a_log_of_drawn_places_estimates_what_greedy_would_have_brought(name) -> None:
    """Intervals of 95 % contain the truth about so often, in 200 logs of 400 requests."""
    truth = np.array([0.2, 0.5, 0.3, 0.05])
    wrong_q = np.array([0.3, 0.3, 0.4, 0.1])
    scores_N = np.array([0.1, 0.2, 0.6, -1.0])  # the model prefers candidate 2, clicks do not
    logging = Policy(name=name, epsilon=0.6, temperature=1.0)
    logged_N, greedy_N = first_probabilities(scores_N, logging), first_probabilities(scores_N, GREEDY)
    value, made, inside = expected_reward(greedy_N, wrong_q), np.random.default_rng(5), collections.Counter()
    means = collections.defaultdict(list)
    for _ in range(200):
        shown = made.choice(4, 400, p=logged_N)
        reward = made.random(400) < truth[shown]
        columns = [reward, logged_N[shown], greedy_N[shown], wrong_q[shown], np.full(400, value)]
        found = PolicyValue().observe(*map(np.asarray, columns)).document()
        for estimate in ("ips", "snips", "dr"):
            means[estimate].append(found[estimate])
            inside[estimate] += abs(found[estimate] - truth[2]) < 1.96 * found[f"{estimate}_error"]
    for estimate, values in means.items():
        assert abs(np.mean(values) - truth[2]) < 4 * np.std(values) / math.sqrt(200)
        assert 0.88 <= inside[estimate] / 200 <= 0.99, estimate


@pytest.mark.skipif(not Path(OPEN_BANDIT).is_file(), reason=f"needs {OPEN_BANDIT.name} of the shared data")
@pytest.mark.parametrize("cap", [5.0, 10.0])
def test_the_random_policys_log_of_open_bandit_estimates_the_click_rate_of_bts(cap) -> None:
    """Its probabilities are the shares of items in its own log, by campaign and position. 0.5 % of few shown items
    are clicked: the intervals are wide, and contain the click rate of `random` too."""
    found, observed = open_bandit(cap)
    for estimate in ("ips", "snips", "dr"):
        assert abs(found[estimate] - observed) < 1.96 * found[f"{estimate}_error"], estimate
    assert found["requests"] == 30_000
    assert 0.9 < found["mean_weight"] < 1.0


def open_bandit(cap: float) -> tuple[dict[str, float], float]:
    """Estimates from the log of `random`, and the click rate that `bts` had.

    Rewards are predicted by the smoothed click rate of an item in the other half of the log of `random`.
    """
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(OPEN_BANDIT).to_pydict()
    names = ("policy", "campaign", "position", "item_id", "click", "propensity")
    rows = list(zip(*(table[name] for name in names), strict=True))
    bts, logged = ([row[1:] for row in rows if row[0] == policy] for policy in ("bts", "random"))
    shown = collections.Counter((campaign, position, item) for campaign, position, item, *_ in bts)
    slots = collections.Counter((campaign, position) for campaign, position, *_ in bts)
    clicks = [collections.Counter[str](), collections.Counter[str]()]
    views = [collections.Counter[str](), collections.Counter[str]()]
    for n, (campaign, _, item, click, _) in enumerate(logged):
        for name in (campaign, item):
            clicks[n % 2][name] += click
            views[n % 2][name] += 1

    def predicted(half: int, campaign: str, item: str) -> float:
        rate = clicks[half][campaign] / views[half][campaign]
        return (clicks[half][item] + 200 * rate) / (views[half][item] + 200)

    values = {
        (half, *slot): sum(
            number / slots[slot] * predicted(half, slot[0], item)
            for (campaign, position, item), number in shown.items()
            if (campaign, position) == slot
        )
        for half in (0, 1)
        for slot in slots
    }
    columns = [
        (
            click,
            propensity,
            shown[campaign, position, item] / slots[campaign, position],
            predicted(1 - n % 2, campaign, item),
            values[1 - n % 2, campaign, position],
        )
        for n, (campaign, position, item, click, propensity) in enumerate(logged)
    ]
    found = PolicyValue(cap).observe(*np.array(columns).T).document()
    return found, sum(row[3] for row in bts) / len(bts)  # type: ignore[return-value]


if __name__ == "__main__":
    for cap in (3.0, 5.0, 10.0, 100.0):
        print(cap, *open_bandit(cap))


def test_totals_have_all_requests_and_the_newest_ones() -> None:
    columns = random_log(5 * RECENT_REQUESTS)
    columns[0, : 3 * RECENT_REQUESTS] = 0
    totals = PolicyTotals.of_cap(5.0)
    for part in np.split(columns, 50, axis=1):
        totals = totals.observe(*part)
    document = totals.document()
    assert totals.whole == PolicyValue(5.0).observe(*columns)
    assert document["whole"]["requests"] == 5 * RECENT_REQUESTS
    assert RECENT_REQUESTS <= document["window"]["requests"] <= 2 * RECENT_REQUESTS
    assert document["window"]["logged"] == pytest.approx(0.3, abs=0.02)
    shared = PolicyTotals.of_cap(5.0).plus(PolicyValue(5.0).observe(*columns))
    assert shared.document()["whole"] == pytest.approx(document["whole"])


def test_fields_name_the_columns_of_each_policy() -> None:
    fields = PolicyFields.of("p", {"greedy": ("g", "q", "gv"), "old": ("o",)}, {"greedy": 10.0, "old": 2.0})
    assert fields.numbers == ("p", "g", "q", "gv", "o")
    numbers_NK = np.array([[0.5, 1.0, 0.2, 0.3, 0.25], [np.nan, 1, 1, 1, 1], [0.5, 0.0, 0.1, 0.3, 1.0]], np.float32)
    found = fields.requests(numbers_NK, np.array([1.0, 1.0, 0.0]), np.ones(3))
    totals = {name: fields.totals({}, name).observe(*columns) for name, columns in found.items()}
    document = fields.document(totals)
    assert document["greedy"]["whole"]["requests"] == 2  # the second has no propensity
    assert document["greedy"]["whole"]["ips"] == pytest.approx(1.0)
    assert document["greedy"]["whole"]["dr"] == pytest.approx((0.3 + 2 * 0.8 + 0.3) / 2)
    assert document["old"]["whole"]["ips"] == pytest.approx(0.25)
    assert document["old"]["whole"]["dr"] is None  # no prediction
    changed = PolicyFields.of("p", {"greedy": ("g", "q", "gv")}, {"greedy": 3.0})
    assert changed.document(totals)["greedy"]["whole"]["requests"] == 0  # another cap begins anew
