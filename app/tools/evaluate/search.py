"""Searches for better settings: Optuna proposes them (TPE) and ends those that fall behind (successive halving).

The newest fifth of the rows chooses nothing: it shows what the winner gains where no choice has seen the rows.
"""

import importlib
import re
import sys
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from springtide.app.config.document import format_toml, merge_document, parse_assignment
from springtide.app.config.load import DEFAULT_PATH, Config, load_config, read_document
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.comparison import Difference, compare, difference_text
from springtide.app.tools.evaluate.evaluation import Evaluation
from springtide.app.tools.evaluate.report import EvaluationResult, ProgressReport, evaluate_files, score_text, table
from springtide.app.training.config import DenseOptimizerConfig
from springtide.embeddings.optimizer import RowOptimizer
from springtide.stream.history.input_file import InputFile

MIN_ROWS = 2000
SEARCHED_SHARE = 0.8  # of the rows
NUM_RUNS, NUM_SHOWN = 27, 5
ETA = 3  # a third of the settings goes on to three times as many rows
PRUNED_AT = (1, ETA)  # ninths of the searched rows
MIN_PRUNED_ROWS = 16_384  # before, a trial of small batches is compared with one that has learned more rows
BATCH_SIZES, DIMS, CROSSES = (64, 256, 1024, 4096), (8, 16, 32), (0, 64)
LR_FACTOR = 5.0  # learning rates: from a fifth of the configuration's own to five times that
NETS = ("dlrm", "deepfm", "logistic")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """Budget of a search: a number of settings to try, or seconds."""

    runs: int | None = NUM_RUNS
    seconds: float | None = None

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
class SearchResult:
    """The winner beside the settings as they were, both over all rows."""

    settings: Mapping[str, Any]  # of the winner, where they are not as they were
    given: EvaluationResult
    winner: EvaluationResult
    whole: Difference
    unseen: Difference  # on the newest rows, which chose nothing
    trials: Sequence[Mapping[str, Any]]  # their settings, logloss, and what became of them; the best first
    num_rows: int
    seconds: float

    def lines(self) -> list[str]:
        """Return the result for people."""
        lines = [
            f"{len(self.trials):,} runs over {self.num_rows:,} rows in {self.seconds:.1f} s",
            f"winner: {describe(self.settings)}",
            "",
        ]
        if self.settings:
            lines += table({"as it is": self.given.first, "winner": self.winner.first}, score_text)
            lines.append(difference_text("winner minus as it is, all rows", self.whole))
            lines.append(difference_text("on the newest fifth, which chose nothing", self.unseen))
            better, same = "better by more than twice", "no difference beyond twice"
            lines.append(f"{better if self.unseen.is_better else same} the standard error")
        else:
            lines += table({"as it is": self.given.first}, score_text)
            lines.append("the settings as they are were not beaten")
        best = [trial for trial in self.trials if trial["state"] == "complete"][:NUM_SHOWN]
        lines += ["", *(f"  logloss {trial['logloss']:.5f}  {describe(trial['settings'])}" for trial in best)]
        failed = [trial for trial in self.trials if trial["state"] == "fail"]
        return [*lines, *(f"failed: {describe(trial['settings'])}" for trial in failed)]

    def document(self) -> dict[str, Any]:
        """Return the result for `--json`."""
        return {
            "settings": self.settings,
            "evaluations": [self.given.document(), self.winner.document()],
            "difference": asdict(self.whole),
            "unseen_difference": asdict(self.unseen),
            "is_better": self.unseen.is_better,
            "rows": self.num_rows,
            "seconds": round(self.seconds, 3),
            "trials": self.trials,
        }

    def toml(self, config_path: Path | str | None, assignments: Sequence[Mapping[str, Any]]) -> str:
        """Return the configuration with the winner's settings; comments of the file are lost."""
        path = Path(config_path or DEFAULT_PATH)
        document = merge_document(read_document(path), [*assignments, *changes(self.settings)])
        comments = [
            f"# {path} with {describe(self.settings)}, found by `springtide evaluate --search`",
            f"# {difference_text('on the newest fifth of the rows', self.unseen)}",
        ]
        return "\n".join(comments) + "\n" + format_toml(document)


class Search:
    """One search. With a number of runs and no storage it is a function of the files, the settings and the seed."""

    def __init__(
        self,
        files: Sequence[InputFile],
        config_path: Path | str | None,
        assignments: Sequence[Mapping[str, Any]] = (),
        *,
        limit: int | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        storage: str | None = None,
        stopping: threading.Event | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """`storage`: of Optuna, such as sqlite:///search.db. Processes that share it search together."""
        self._files, self._path, self._assignments = tuple(files), config_path, tuple(assignments)
        self._budget, self._seed, self._storage = budget or Budget(), seed, storage
        self._stopping, self._stream = stopping or threading.Event(), stream or sys.stderr
        self._num_rows = count_rows(files, limit)
        if self._num_rows < MIN_ROWS:
            raise UserError(f"--search needs at least {MIN_ROWS:,} rows, not {self._num_rows:,}")
        self._searched_rows = int(self._num_rows * SEARCHED_SHARE)
        self._optuna = import_optuna()

    def run(self) -> SearchResult:
        """1. Evaluate the settings as they are. 2. Search. 3. Evaluate the winner over all rows.

        UserError if the settings cannot be used as they are, or if no other could be evaluated.
        """
        optuna, began = self._optuna, time.monotonic()
        config = load_config(self._path, assignments=self._assignments)
        study = self._study(config)
        given = self._evaluate({}, self._num_rows, quiet())
        self._say(f"as it is: logloss {mean_logloss(given):.5f}, {given.seconds:.1f} s for all rows")
        study.enqueue_trial(present_settings(config), skip_if_exists=True)
        left = None if self._budget.seconds is None else max(self._budget.seconds - 2 * given.seconds, 0.0)
        study.optimize(
            lambda trial: self._try(trial, config),
            n_trials=self._budget.runs,
            timeout=left,
            callbacks=[self._after_trial],
            catch=(UserError, ValueError, MemoryError),
        )
        self._check_stop()
        complete = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
        if not complete:
            raise UserError("--search: no settings were evaluated to the end: give a larger --budget")
        now = present_settings(config)
        settings = {name: short(value) for name, value in study.best_params.items() if short(value) != now[name]}
        winner = self._evaluate(settings, self._num_rows, quiet()) if settings else given
        trials = sorted(study.trials, key=lambda trial: (trial.value is None, trial.value, trial.number))
        return SearchResult(
            settings=settings,
            given=given,
            winner=winner,
            whole=compare(given.scored, winner.scored),
            unseen=compare(given.scored, winner.scored, from_row=self._searched_rows),
            trials=[
                {
                    "settings": {name: short(value) for name, value in trial.params.items()},
                    "logloss": trial.value,
                    "state": trial.state.name.lower(),
                }
                for trial in trials
            ],
            num_rows=self._num_rows,
            seconds=time.monotonic() - began,
        )

    def _study(self, config: Config) -> Any:
        """Create the study, or go on with the one in the storage that searched the same files from the same settings.

        UserError if the storage cannot be used.
        """
        optuna = self._optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        searched = [[str(file.path.resolve()) for file in self._files], self._num_rows, present_settings(config)]
        digest = zlib.crc32(repr([*searched, config.model, config.schema, self._assignments]).encode())
        try:
            return optuna.create_study(
                study_name=f"{config.name}-{digest:08x}",
                storage=self._storage,
                load_if_exists=True,
                sampler=optuna.samplers.TPESampler(seed=self._seed),
                pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA),
            )
        except Exception as error:  # Optuna's, SQLAlchemy's or a driver's
            if self._storage is None:
                raise
            raise UserError(f"--storage {self._storage} cannot be used: {str(error).splitlines()[0]}") from error

    def _check_stop(self) -> None:
        """KeyboardInterrupt if the search was asked to stop: what was scored on the way is no result."""
        if self._stopping.is_set():
            raise KeyboardInterrupt

    def _try(self, trial: Any, config: Config) -> float:
        """Evaluate what Optuna proposes; it may end a trial early."""
        settings = {name: short(value) for name, value in propose(trial, config).items()}
        progress = PrunedProgress(trial, self._searched_rows)
        try:
            found = self._evaluate(settings, self._searched_rows, progress)
        except (UserError, ValueError, MemoryError) as error:
            trial.set_user_attr("reason", str(error) or type(error).__name__)
            raise
        if not found.is_complete:
            raise self._optuna.TrialPruned
        return mean_logloss(found)

    def _evaluate(self, settings: Mapping[str, Any], rows: int, progress: ProgressReport) -> EvaluationResult:
        assignments = [*self._assignments, *changes(settings)]
        result = evaluate_files(
            self._files, self._path, assignments, limit=rows, stopping=self._stopping, progress=progress
        )
        self._check_stop()
        return result

    def _after_trial(self, study: Any, trial: Any) -> None:
        loss = "-" if trial.value is None else f"{trial.value:.5f}"
        settings = {name: short(value) for name, value in trial.params.items()}
        end = f"{loss}: {trial.user_attrs['reason']}" if "reason" in trial.user_attrs else loss
        self._say(f"run {trial.number + 1} {trial.state.name.lower()}: {describe(settings)}: logloss {end}")
        if self._stopping.is_set():
            study.stop()

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class PrunedProgress(ProgressReport):
    """Shows nothing, but reports the logloss of a trial on the way; Optuna says whether it goes on."""

    def __init__(self, trial: Any, num_rows: int) -> None:
        super().__init__(stream=StringIO(), first_line=num_rows + 1)
        self._trial = trial
        places = [(num_rows * ninths // 9, ninths) for ninths in PRUNED_AT]
        self._left = [(rows, ninths) for rows, ninths in places if rows >= MIN_PRUNED_ROWS]

    def show(self, evaluation: Evaluation) -> None:
        """Report at a ninth and a third of the rows; raises Optuna's TrialPruned."""
        while self._left and evaluation.num_samples >= self._left[0][0]:
            _, step = self._left.pop(0)
            document = evaluation.state.scores.document()
            tasks = [task["whole"] for task in document.get("tasks", {}).values()] or [document["whole"]]
            self._trial.report(_mean([task["logloss"] for task in tasks]), step)
            if self._trial.should_prune():
                raise import_optuna().TrialPruned


def import_optuna() -> Any:
    """Return the module; UserError where it is not installed."""
    try:
        return importlib.import_module("optuna")
    except ModuleNotFoundError:
        raise UserError("--search needs Optuna: pip install 'springtide[search]'") from None


def present_settings(config: Config) -> dict[str, Any]:
    """Return the configuration's own values of what is searched, as `--set` names them."""
    found: dict[str, Any] = {
        "train.batch_size": config.train.batch_size,
        "table.dim": config.table.dim,
        "table.optimizer.lr": short(RowOptimizer.of(config.table.optimizer).lr),
        "train.optimizer.lr": short(DenseOptimizerConfig.of(config.train.optimizer).lr),
    }
    if config.model.name in NETS and not config.model.options:  # options of one net mean nothing to another
        found["model.name"] = config.model.name
    if config.model.has_wide_part:
        found["model.crosses"] = config.model.crosses
    return found


def propose(trial: Any, config: Config) -> dict[str, Any]:
    """Let Optuna choose a value for each setting."""
    choices: dict[str, Sequence[Any]] = {
        "train.batch_size": BATCH_SIZES,
        "table.dim": DIMS,
        "model.name": NETS,
        "model.crosses": CROSSES,
    }
    for name, value in present_settings(config).items():
        if name in choices:
            trial.suggest_categorical(name, sorted({*choices[name], value}))
        else:
            trial.suggest_float(name, value / LR_FACTOR, value * LR_FACTOR, log=True)
    proposed: dict[str, Any] = trial.params
    return proposed


def changes(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return settings as the documents that `--set` makes."""
    return [parse_assignment(f"{name}={value}") for name, value in settings.items()]


def describe(settings: Mapping[str, Any]) -> str:
    """Return settings as `train.batch_size=64 table.dim=8`; "as it is" for none."""
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "as it is"


def short(value: Any) -> Any:
    """Return a fraction with three significant digits, and anything else as it is."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def quiet() -> ProgressReport:
    """Return a report that shows nothing."""
    return ProgressReport(stream=StringIO(), first_line=1 << 62)


def mean_logloss(found: EvaluationResult) -> float:
    """Return the mean over labels; infinite where none has one."""
    return _mean([score.logloss for score in found.whole.values()])


def _mean(losses: Sequence[float | None]) -> float:
    known = [loss for loss in losses if loss is not None and loss == loss]
    return sum(known) / len(known) if known else float("inf")


def count_rows(files: Sequence[InputFile], limit: int | None) -> int:
    """Return how many rows the files have, at most `limit`."""
    num = 0
    for file in files:
        for _ in file.rows():
            num += 1
            if num == limit:
                return num
    return num
