"""Budgets and rungs of a search."""

import pytest

from springtide.app.errors import UserError
from springtide.app.tools.evaluate.search.plan import Budget, Rung, rungs, runs_within, searched_rows


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("27 runs", Budget(27, None)),
        ("9", Budget(9, None)),
        ("90s", Budget(None, 90.0)),
        ("10m", Budget(None, 600.0)),
        ("1.5 h", Budget(None, 5400.0)),
    ],
)
def test_a_budget_is_a_number_of_runs_or_a_time(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "1", "-3", "0m", "10 days", "ten", "3.5 runs"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="number of runs"):
        Budget.parse(text)


def test_a_third_goes_on_to_a_prefix_three_times_as_long() -> None:
    assert rungs(27, 90_000) == [Rung(27, 10_000), Rung(9, 30_000), Rung(3, 90_000)]
    assert rungs(20, 90_000) == [Rung(20, 10_000), Rung(6, 30_000), Rung(2, 90_000)]
    assert rungs(2, 5000) == [Rung(2, 5000)]


def test_a_short_log_has_fewer_rungs_and_none_is_below_the_shortest_prefix() -> None:
    assert rungs(27, 2000) == [Rung(27, 1000), Rung(3, 2000)]
    assert rungs(27, 900) == [Rung(27, 900)]


def test_more_time_tries_more_settings() -> None:
    rows, found = 100_000, []
    for seconds in (0, 60, 600, 6000):
        found.append(runs_within(seconds, pass_seconds=10, start_seconds=1, num_rows=rows, jobs=2))
    assert found == sorted(found)
    assert (found[0], found[-1]) == (2, 243)
    work = sum(rung.num * (1 + 10 * rung.rows / rows) for rung in rungs(found[2], searched_rows(rows)))
    assert work / 2 + 11 <= 600
