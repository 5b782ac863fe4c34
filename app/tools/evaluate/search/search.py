"""Successive halving over prefixes of a log (Jamieson and Talwalkar 2016, Li et al. 2018)."""

import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from springtide.app.config.load import DEFAULT_PATH, Config
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.comparison import Difference, compare
from springtide.app.tools.evaluate.report import EvaluationResult
from springtide.app.tools.evaluate.search.plan import MIN_PREFIX_ROWS, Budget, rungs, runs_within, searched_rows
from springtide.app.tools.evaluate.search.space import Change, candidates, describe_change
from springtide.app.tools.evaluate.search.trials import Trial, TrialRequest, TrialRunner
from springtide.app.tools.evaluate.settings import temporary_config
from springtide.app.tools.input_file import InputFile


@dataclass(frozen=True)
class RungResult:
    """What the settings of one rung scored, best first."""

    rows: int
    trials: Sequence[tuple[Change, Trial]]


@dataclass(frozen=True)
class SearchResult:
    """The winner beside the settings as they were, both over all rows."""

    change: Change  # of the settings; {} if they were not beaten
    given: EvaluationResult
    winner: EvaluationResult
    whole: Difference
    unseen: Difference  # on the newest rows, which chose nothing
    rungs: Sequence[RungResult]
    num_rows: int
    seconds: float


class Search:
    """One search. With a number of runs it is a function of the files, the settings and the seed."""

    def __init__(
        self,
        files: Sequence[InputFile],
        config_path: Path | str | None,
        assignments: Sequence[Mapping[str, Any]] = (),
        *,
        limit: int | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        jobs: int = 1,
        stopping: threading.Event | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._files, self._path = tuple(file.path for file in files), Path(config_path or DEFAULT_PATH)
        self._assignments = tuple(assignments)
        self._budget, self._seed, self._jobs = budget or Budget(27, None), seed, jobs
        self._stopping, self._stream = stopping or threading.Event(), stream or sys.stderr
        self._num_rows = count_rows(files, limit)
        if self._num_rows < 2 * MIN_PREFIX_ROWS:
            raise UserError(f"--search needs at least {2 * MIN_PREFIX_ROWS:,} rows, not {self._num_rows:,}")

    def run(self) -> SearchResult:
        """1. Evaluate the settings as they are. 2. Narrow the candidates down. 3. Evaluate the winner over all rows.

        UserError if the settings cannot be used as they are.
        """
        began = time.monotonic()
        with (
            temporary_config(self._path, self._assignments) as config,
            tempfile.TemporaryDirectory(prefix="springtide-search-") as folder,
            TrialRunner(self._jobs, self._stopping) as runner,
        ):
            (given,) = runner.run([self._request({}, self._num_rows, folder, keep_samples=True)])
            if given.result is None:
                raise UserError(given.error)
            self._say(f"as it is: logloss {given.loss:.5f}, AUC {_auc(given)}, {given.seconds:.1f} s for all rows")
            found = self._narrow_down(self._candidates(config, given), runner, folder)
            best = found[-1].trials[0][0]
            winner = given
            if best:
                (winner,) = runner.run([self._request(best, self._num_rows, folder, keep_samples=True)])
        if winner.result is None:
            raise UserError(f"{describe_change(best)}: {winner.error}")
        first, second = given.result.scored, winner.result.scored
        return SearchResult(
            change=best,
            given=given.result,
            winner=winner.result,
            whole=compare(first, second),
            unseen=compare(first, second, from_row=searched_rows(self._num_rows)),
            rungs=found,
            num_rows=self._num_rows,
            seconds=time.monotonic() - began,
        )

    def _candidates(self, config: Config, given: Trial) -> list[Change]:
        num = self._budget.runs
        if num is None:
            assert self._budget.seconds is not None
            assert given.result is not None
            num = runs_within(
                self._budget.seconds - given.seconds,
                pass_seconds=given.result.seconds,
                start_seconds=max(given.seconds - given.result.seconds, 0.0),
                num_rows=self._num_rows,
                jobs=self._jobs,
            )
        return candidates(config, num, self._seed)

    def _narrow_down(self, changes: list[Change], runner: TrialRunner, folder: str) -> list[RungResult]:
        """Evaluate all on the shortest prefix, the better third on the next one, and so on."""
        found: list[RungResult] = []
        for rung in rungs(len(changes), searched_rows(self._num_rows)):
            changes = changes[: rung.num]
            trials = runner.run([self._request(change, rung.rows, folder) for change in changes])
            order = sorted(range(len(changes)), key=lambda place: (trials[place].loss, place))
            found.append(RungResult(rung.rows, [(changes[place], trials[place]) for place in order]))
            best, trial = found[-1].trials[0]
            title = f"{len(changes)} settings on {rung.rows:,} rows"
            self._say(f"{title}: best logloss {trial.loss:.5f}, AUC {_auc(trial)}: {describe_change(best)}")
            changes = [change for change, _ in found[-1].trials]
        return found

    def _request(self, change: Change, rows: int, folder: str, *, keep_samples: bool = False) -> TrialRequest:
        changes = (*self._assignments, change)
        return TrialRequest(self._files, self._path, changes, rows, folder, keep_samples)

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def count_rows(files: Sequence[InputFile], limit: int | None) -> int:
    """Return how many rows the files have, at most `limit`."""
    num = 0
    for file in files:
        for _ in file.rows():
            num += 1
            if num == limit:
                return num
    return num


def _auc(trial: Trial) -> str:
    return "-" if trial.auc is None else f"{trial.auc:.4f}"
