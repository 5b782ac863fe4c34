"""One evaluation of files, and its report: lines as it goes, a table at the end, one JSON object for programs."""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.tools.evaluate.evaluation import Evaluation
from springtide.app.tools.evaluate.file_source import FileSource
from springtide.app.tools.evaluate.ranking import ranking_documents, ranking_lines
from springtide.app.tools.evaluate.scores import MISSING, EvaluatedSamples, Score, score_of
from springtide.app.tools.progress_bar import ProgressBar
from springtide.stream.history.input_file import InputFile

HEADER = f"{'AUC':>7}  {'+-':>6}  {'logloss':>8}  {'NE':>6}  {'calibration':>11}"

# what a trainer's status says too, by the same names
STATUS_SCORES = ("auc", "logloss", "normalized_entropy", "calibration", "label_rate")


class ProgressReport:
    """The scores so far: beside a bar on a terminal; elsewhere a line at 1,000 samples, 2,000, 5,000, 10,000, ..."""

    def __init__(self, *, stream: TextIO | None = None, title: str = "", first_line: int = 1000) -> None:
        """`stream`: by default stderr. `title` begins each line. `first_line`: samples before the first one."""
        self.bar = ProgressBar(stream=stream)
        self._stream, self._title, self._next_line = stream or sys.stderr, title, first_line

    def show(self, evaluation: Evaluation) -> None:
        """Update the bar, or print a line if one is due."""
        num = evaluation.num_samples
        self.bar.show(num, evaluation.fraction, lambda: f" {self._title}{self._scores(evaluation)}")
        if not self.bar.is_terminal and num >= self._next_line:
            rate = f"{self.bar.rate(num):,.0f}/s"
            print(f"{self._title}{num:>11,}  {self._scores(evaluation)}  {rate}", file=self._stream, flush=True)
            while self._next_line <= num:
                self._next_line = next_line(self._next_line)

    def end(self) -> None:
        """Remove the bar."""
        self.bar.erase()

    def _scores(self, evaluation: Evaluation) -> str:
        whole = evaluation.state.scores.document()["whole"]
        auc, logloss, calibration = (whole[name] for name in ("auc", "logloss", "calibration"))
        return f"AUC {number(auc, 4)}  logloss {number(logloss, 4)}  calibration {number(calibration, 3)}"


def next_line(num: int) -> int:
    """Return the number after 1,000, 2,000, 5,000, 10,000, ..."""
    return num * 5 // 2 if str(num).startswith("2") else num * 2


@dataclass(frozen=True)
class EvaluationResult:
    """The result of one evaluation."""

    config: str  # the file of the settings
    rows: int
    samples: int
    seconds: float
    dead_letters: Mapping[str, int]
    first_dead_letter: str
    dropped_negatives: int
    fields_without_values: Sequence[str]  # of [schema]
    is_complete: bool  # False: it was stopped
    whole: Mapping[str, Score]  # by label
    window: Score  # of the newest samples, for the first label
    segment_field: str
    segments: Sequence[tuple[str, Score]]  # for the first label
    scored: EvaluatedSamples
    at: tuple[int, ...] = ()  # the k of ranking metrics
    rankings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by label and kind of group
    policies: Mapping[str, Any] = field(default_factory=dict)  # what each would have earned

    @staticmethod
    def of(evaluation: Evaluation, seconds: float, *, is_complete: bool) -> "EvaluationResult":
        """Return the result. The STATUS_SCORES of all samples are those that a trainer's status has."""
        samples, source = evaluation.samples(), evaluation.source
        document = evaluation.state.scores.document()
        whole = {}
        for index, label in enumerate(evaluation.config.schema.labels):
            trainers = document.get("tasks", {}).get(label, document)["whole"]
            known = {name: trainers.get(name) for name in STATUS_SCORES}
            whole[label] = replace(score_of(samples, label=index), **known, rmse=trainers.get("rmse"))
        is_sampled = evaluation.config.negatives is not None
        newest = slice(-evaluation.config.train.window_samples, None)
        return EvaluationResult(
            config=str(evaluation.config.path),
            rows=source.num_rows,
            samples=len(samples),
            seconds=seconds,
            dead_letters=dict(evaluation.dead_letters),
            first_dead_letter=evaluation.first_dead_letter,
            dropped_negatives=evaluation.num_dropped,
            fields_without_values=source.fields_without_values(),
            is_complete=is_complete,
            whole=whole,
            window=score_of(samples.where(newest)),
            segment_field="" if source.segments is None else source.segments.name,
            segments=[] if source.segments is None else source.segments.scores(samples),
            scored=samples,
            at=(at := evaluation.config.scores.at),
            rankings={
                label: found
                for index, label in enumerate(evaluation.config.schema.labels)
                if (found := ranking_documents(samples, at, label=index, is_sampled=is_sampled))
            },
            policies=evaluation.state.detailed_scores().get("policies", {}),
        )

    @property
    def first(self) -> Score:
        """The scores of the first label."""
        return next(iter(self.whole.values()))

    @property
    def samples_per_second(self) -> float:
        return self.samples / max(self.seconds, 1e-9)

    def document(self) -> dict[str, Any]:
        """Return the result for `--json`."""
        scores = {"whole": asdict(self.first), "window": asdict(self.window)}
        if len(self.whole) > 1:
            scores["tasks"] = {label: asdict(score) for label, score in self.whole.items()}
        found: dict[str, Any] = {
            "config": self.config,
            "rows": self.rows,
            "samples": self.samples,
            "dead_letters": dict(self.dead_letters),
            "first_dead_letter": self.first_dead_letter,
            "dropped_negatives": self.dropped_negatives,
            "fields_without_values": list(self.fields_without_values),
            "is_complete": self.is_complete,
            "seconds": round(self.seconds, 3),
            "samples_per_second": round(self.samples_per_second, 1),
            "scores": scores,
        }
        if self.rankings:
            found["ranking"] = dict(self.rankings)
        if self.policies:
            found["policies"] = dict(self.policies)
        if self.segment_field:
            segments = [{"value": text, **asdict(score)} for text, score in self.segments]
            found["by"] = {"field": self.segment_field, "segments": segments}
        return found

    def lines(self) -> list[str]:
        """Return the result for people."""
        rate = f"{self.seconds:.1f} s ({self.samples_per_second:,.0f}/s)"
        stopped = "" if self.is_complete else ", stopped before the end"
        lines = [f"{self.samples:,} samples in {rate} with {self.config}{stopped}", *self.warnings(), ""]
        whole = {"all samples" if len(self.whole) == 1 else label: score for label, score in self.whole.items()}
        window = {f"last {self.window.samples:,}": self.window} if self.window.samples < self.samples else {}
        lines += table(whole | window, score_text)
        for label, ranking in self.rankings.items():
            title = "" if len(self.whole) == 1 else f"{label}, "
            lines += ["", *(f"{title}{line}" if line[0] != " " else line for line in ranking_lines(ranking))]
        for name, policy in self.policies.items():
            lines += ["", *policy_lines(name, policy["whole"])]
        if self.segment_field:
            segments, title = dict(self.segments), f"by {self.segment_field}"
            lines += [
                "",
                *table(segments, lambda score: f"{score_text(score)}  {score.samples:>11,}", title, "samples"),
            ]
        return lines

    def warnings(self) -> list[str]:
        """Return a line for rows that cannot be learned, and lines for fields that no row has."""
        lines = []
        if self.dropped_negatives:
            lines.append(f"{self.dropped_negatives:,} negatives dropped: those that were kept count for them")
        if self.dead_letters:
            counts = ", ".join(f"{num:,} {reason}" for reason, num in sorted(self.dead_letters.items()))
            num = sum(self.dead_letters.values())
            lines.append(f"{num:,} of {self.rows:,} rows cannot be learned: {counts}; {self.first_dead_letter}")
        if self.fields_without_values:
            names = ", ".join(self.fields_without_values)
            lines.append(
                f"no row has a value for {names}: nothing is learned from that; compare [schema] with the rows"
            )
        if [value for value, _ in self.segments] == [MISSING]:
            lines.append(f"no row has a value for {self.segment_field}: --by must name a field of the rows")
        return lines


def evaluate_files(
    files: Sequence[InputFile],
    config_path: Path | str | None,
    assignments: Sequence[Mapping[str, Any]] = (),
    *,
    limit: int | None = None,
    by: str | None = None,
    stopping: threading.Event | None = None,
    progress: ProgressReport | None = None,
    folder: str | None = None,
) -> EvaluationResult:
    """Learn the files in one pass. `stopping` ends it early; the result then says so. `folder`: for temporary files."""
    with tempfile.TemporaryDirectory(prefix="springtide-evaluate-", dir=folder) as own:
        # with a log and a spill of its own: an existing log changes nothing
        paths = {"log": {"path": f"{own}/log"}, "table": {"disk_path": f"{own}/spill"}}
        config = load_config(config_path, paths, assignments)
        if any(memory.known == "record" for memory in config.schema.remembered):
            raise UserError(
                '[memory] known = "record" needs the times of Kafka\'s records, which files lack: evaluate with '
                "--set memory.known=event and a delay_seconds"
            )
        source = FileSource(
            config.source, config.schema.recorded, files, limit=limit, by=by, negatives=config.negatives
        )
        evaluation = Evaluation(config, source)
        progress = progress or ProgressReport()
        began = time.monotonic()

        def on_batch(evaluation: Evaluation) -> bool:
            progress.show(evaluation)
            return stopping is not None and stopping.is_set()

        try:
            evaluation.run(on_batch)
            seconds = time.monotonic() - began
            return EvaluationResult.of(evaluation, seconds, is_complete=source.finished)
        finally:
            progress.end()
            evaluation.close()


def table(rows: Mapping[str, Score], text: Callable[[Score], str], title: str = "", more: str = "") -> list[str]:
    """Return lines of scores under a header; names that are long are cut."""
    names = [name if len(name) <= 32 else f"{name[:31]}…" for name in rows]
    width = max(map(len, [title, *names]))
    header = f"{title:<{width}}  {HEADER}{more:>13}".rstrip()
    return [header, *(f"{name:<{width}}  {text(score)}" for name, score in zip(names, rows.values(), strict=True))]


def policy_lines(name: str, value: Mapping[str, float | None]) -> list[str]:
    """Return what a policy would have earned, for people."""
    estimates = [
        f"{estimate.upper()} {number(value[estimate], 4)} +- {number(value[f'{estimate}_error'], 4)[:8]}"
        for estimate in ("ips", "snips", "dr")
        if value[estimate] is not None
    ]
    return [
        f"policy {name}, {value['requests']:,} requests, which have earned {number(value['logged'], 4)}:",
        f"  {'  '.join(estimates)}  effective samples {value['effective_samples'] or 0:,.0f}, "
        f"clipped {value['clipped'] or 0:.1%}",
    ]


def score_text(score: Score) -> str:
    """Return the columns under HEADER."""
    return (
        f"{number(score.auc, 4):>7}  {number(score.auc_standard_error, 4)[:6]:>6}  {number(score.logloss, 4):>8}  "
        f"{number(score.normalized_entropy, 3):>6}  {number(score.calibration, 3):>11}"
        + ("" if score.rmse is None else f"  rmse {number(score.rmse, 4)}")
    )


def number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, small ones with as many significant digits; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 0.1 else f"{value:.{digits}g}"
