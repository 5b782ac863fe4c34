"""How a search spends its budget: how many settings, on which prefixes of the log."""

import re
from dataclasses import dataclass

from springtide.app.errors import UserError

ETA = 3  # a third goes on to a prefix three times as long
MIN_PREFIX_ROWS = 1000
SEARCHED_SHARE = 0.8  # of the rows; the rest shows what the winner gains on rows that chose nothing
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """Either a number of settings to try, or seconds."""

    runs: int | None
    seconds: float | None

    @staticmethod
    def parse(text: str) -> "Budget":
        """Return the budget that `27 runs`, `27`, `90s`, `10m` or `1h` names; UserError for anything else."""
        if found := re.fullmatch(r"(\d+) *(runs?)?", text.strip()):
            if int(found[1]) >= 2:
                return Budget(int(found[1]), None)
        elif (found := re.fullmatch(r"(\d+(?:\.\d+)?) *([smh])", text.strip())) and float(found[1]) > 0:
            return Budget(None, float(found[1]) * UNITS[found[2]])
        raise UserError(f"--budget {text}: write a number of runs, at least 2 (27 runs), or a time (90s, 10m, 1h)")


@dataclass(frozen=True)
class Rung:
    """So many settings learn so many rows from the beginning of the log."""

    num: int
    rows: int


def rungs(num_settings: int, num_rows: int) -> list[Rung]:
    """Return the rungs of successive halving (Jamieson and Talwalkar 2016), the last one over all `num_rows`."""
    counts, num = [], num_settings
    while num > 1:
        counts.append(num)
        num = max(num // ETA, 1)
    prefixes = [max(num_rows // ETA ** (len(counts) - 1 - place), 1) for place in range(len(counts))]
    found: list[Rung] = []
    for count, rows in zip(counts, prefixes, strict=True):
        rows = min(max(rows, MIN_PREFIX_ROWS), num_rows)
        if not found or rows > found[-1].rows:  # the log is too short for so many prefixes
            found.append(Rung(count, rows))
    return found


def searched_rows(num_rows: int) -> int:
    """Return how many rows, from the first on, may choose the winner."""
    return max(int(num_rows * SEARCHED_SHARE), 1)


def runs_within(seconds: float, *, pass_seconds: float, start_seconds: float, num_rows: int, jobs: int) -> int:
    """Return how many settings fit into a time, by what a pass over all rows and its start take; at least 2."""
    searched, fitting = searched_rows(num_rows), 2
    for num in (3, 6, 9, 18, 27, 54, 81, 162, 243):
        work = sum(rung.num * (start_seconds + pass_seconds * rung.rows / num_rows) for rung in rungs(num, searched))
        if work / jobs + start_seconds + pass_seconds <= seconds:  # and the winner once more, over all rows
            fitting = num
    return fitting
