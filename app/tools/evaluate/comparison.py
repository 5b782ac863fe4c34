"""Two evaluations of the same rows, side by side: the differences and how certain they are."""

# N samples
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from springtide.app.errors import UserError
from springtide.app.scores.auc import exact_auc
from springtide.app.tools.evaluate.ranking import difference_lines, ranking_differences
from springtide.app.tools.evaluate.report import EvaluationResult, score_text, table
from springtide.app.tools.evaluate.scores import EvaluatedSamples, clustered_error, difference_error, losses
from springtide.app.tools.status_text import format_number


@dataclass(frozen=True)
class Difference:
    """The second evaluation minus the first, on the samples of both. None where it is not defined.

    The standard errors are those of paired samples: independent ones (DeLong et al. 1988 for the AUC), or clustered by
    user where `[scores] group` names one.
    """

    samples: int
    auc: float | None
    auc_standard_error: float | None
    logloss: float | None
    logloss_standard_error: float | None

    @property
    def is_better(self) -> bool:
        """True if the second one's logloss is lower by more than twice the standard error."""
        return self.logloss is not None and self.logloss < -2 * (self.logloss_standard_error or 0)


def compare(first: EvaluatedSamples, second: EvaluatedSamples, *, label: int = 0, from_row: int = 0) -> Difference:
    """Return the difference for one label on the rows that both have learned, from a row of the files on."""
    rows_N, at_first_N, at_second_N = np.intersect1d(first.row_N, second.row_N, assume_unique=True, return_indices=True)
    kept_N = rows_N >= from_row
    first, second = first.where(at_first_N[kept_N]), second.where(at_second_N[kept_N])
    scores_N, positive_N, negative_N = first.of_label(label)
    others_N = second.of_label(label)[0]
    users_N = second.users_N if first.users_N is None else first.users_N
    weights_N = positive_N + negative_N
    total = float(weights_N.sum())
    before, after = exact_auc(scores_N, positive_N, negative_N), exact_auc(others_N, positive_N, negative_N)
    auc = None if before is None or after is None else after - before
    logloss = logloss_error = None
    if total > 0:
        gained_N = losses(others_N, positive_N, negative_N) - losses(scores_N, positive_N, negative_N)
        logloss = float(gained_N.sum()) / total
        terms_N = gained_N - weights_N * logloss
        error = math.sqrt(float(np.square(terms_N).sum())) if users_N is None else clustered_error(terms_N, users_N)
        logloss_error = None if error is None else error / total
    return Difference(
        samples=int(np.count_nonzero(weights_N)),
        auc=auc,
        auc_standard_error=None
        if auc is None
        else difference_error(others_N, scores_N, positive_N, negative_N, users_N),
        logloss=logloss,
        logloss_standard_error=logloss_error,
    )


def same_rows(first: EvaluationResult, second: EvaluationResult) -> tuple[EvaluatedSamples, EvaluatedSamples]:
    """Return the samples that both have learned."""
    _, *places = np.intersect1d(first.scored.row_N, second.scored.row_N, assume_unique=True, return_indices=True)
    return first.scored.where(places[0]), second.scored.where(places[1])


def require_same_labels(results: Sequence[EvaluationResult]) -> None:
    """Raise UserError if two evaluations predict different fields."""
    labels = [", ".join(result.whole) for result in results]
    if labels[0] != labels[1]:
        names = " and ".join(f"{result.config} predicts {label}" for result, label in zip(results, labels, strict=True))
        raise UserError(f"{names}: there is nothing to compare")


def comparison_document(first: EvaluationResult, second: EvaluationResult) -> dict[str, Any]:
    """Return two results and their differences by label for `--json`."""
    differences = {
        label: asdict(compare(first.scored, second.scored, label=index)) for index, label in enumerate(first.whole)
    }
    found = {"evaluations": [first.document(), second.document()], "differences": differences}
    same = same_rows(first, second)
    ranking = {label: ranking_differences(*same, first.at, label=index) for index, label in enumerate(first.whole)}
    return found | ({"ranking_differences": ranking} if any(ranking.values()) else {})


def comparison_lines(first: EvaluationResult, second: EvaluationResult) -> list[str]:
    """Return two results and their differences for people."""
    lines: list[str] = []
    same = same_rows(first, second)
    for index, label in enumerate(first.whole):
        both = {"1": first.whole[label], "2": second.whole[label]}
        lines += ["", *table(both, score_text, label)]
        lines.append(difference_text("2 minus 1", compare(first.scored, second.scored, label=index)))
        lines += difference_lines(ranking_differences(*same, first.at, label=index))
    for name, result in (("1", first), ("2", second)):
        lines += ["", f"{name}: {result.lines()[0]}", *result.lines()[1:]] if result.segments else []
    heads = []
    for name, result in (("1", first), ("2", second)):
        heads += [f"{name}: {result.lines()[0]}", *(f"{name}: {warning}" for warning in result.warnings())]
    return [*heads, *lines]


def difference_text(title: str, difference: Difference) -> str:
    """Return a difference as one line."""
    return (
        f"{title}: AUC {format_number(difference.auc, '+.5f')} "
        f"+- {format_number(difference.auc_standard_error, '.5f')}, "
        f"logloss {format_number(difference.logloss, '+.5f')} "
        f"+- {format_number(difference.logloss_standard_error, '.5f')} "
        f"on {difference.samples:,} samples"
    )
