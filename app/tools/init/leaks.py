"""Fields that give the label away: known only after the click, and useless, or worse, as features."""

# N rows with a label
from collections import Counter
from collections.abc import Sequence

import numpy as np

from springtide.app.scores.auc import click_auc
from springtide.app.tools.init.column_profile import ColumnProfile

MIN_OF_A_CLASS = 10  # fewer rows of a label say nothing
DETERMINED = 0.99  # share of each class that the field alone predicts correctly
SEPARATED = 0.995  # AUC of a number alone


def leak_of(column: ColumnProfile, labels_N: Sequence[float | None]) -> str:
    """Return how a field gives a label of 0 and 1 away; "" if it does not seem to."""
    rows = [(value, label == 1) for value, label in zip(column.values, labels_N, strict=True) if label is not None]
    positives = sum(clicked for _, clicked in rows)
    if min(positives, len(rows) - positives) < MIN_OF_A_CLASS:
        return ""
    given = [value is not None for value, _ in rows]
    if all(is_given == clicked for is_given, (_, clicked) in zip(given, rows, strict=True)):
        return "is null exactly when the label is 0"
    if all(is_given != clicked for is_given, (_, clicked) in zip(given, rows, strict=True)):
        return "is null exactly when the label is 1"
    if told_by_value(rows) >= DETERMINED:
        return "determines the label alone"
    numbers = [(value, clicked) for value, clicked in rows if isinstance(value, (int, float))]
    if len(numbers) == sum(given):
        values_N, clicked_N = np.array([v for v, _ in numbers], np.float64), np.array([c for _, c in numbers], bool)
        enough = min(clicked_N.sum(), (~clicked_N).sum()) >= MIN_OF_A_CLASS
        auc = click_auc(values_N, clicked_N) if enough else None
        if auc is not None and max(auc, 1 - auc) >= SEPARATED:
            return f"orders the labels almost perfectly (AUC {max(auc, 1 - auc):.3f})"
    return ""


def told_by_value(rows: Sequence[tuple[object, bool]]) -> float:
    """Return the share of the worse class that the other rows with the same value tell right by their majority."""
    keys = [str(value) for value, _ in rows]
    totals, clicks = Counter(keys), Counter(key for key, (_, clicked) in zip(keys, rows, strict=True) if clicked)
    right = {True: 0, False: 0}
    for key, (_, clicked) in zip(keys, rows, strict=True):
        others = totals[key] - 1
        same = clicks[key] - 1 if clicked else others - clicks[key]
        right[clicked] += 2 * same > others
    num = Counter(clicked for _, clicked in rows)
    return min(right[clicked] / num[clicked] for clicked in (True, False))
