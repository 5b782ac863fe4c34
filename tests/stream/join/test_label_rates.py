"""A label that becomes far rarer than on the day before is suspect; few samples say nothing."""

import numpy as np

from springtide.stream.join.label_rates import MINUTE_MS, LabelRates

NAN = float("nan")


def add(rates: LabelRates, minute: int, num: int, *positives: float) -> None:
    """Samples of one minute, so many of them positive for each label; NaN masks the label."""
    labels_NL = np.stack([np.full(num, NAN) if np.isnan(p) else np.arange(num) < p for p in positives], axis=1)
    rates.add(np.full(num, minute * MINUTE_MS), labels_NL.astype(np.float32))


def test_a_label_below_a_tenth_of_its_rate_is_suspect() -> None:
    rates = LabelRates(["click", "order"])
    for minute in range(60):
        add(rates, minute, 1000, 10, 10)
    assert rates.suspects() == []
    add(rates, 60, 1000, 0, 10)
    add(rates, 61, 1000, 1, 10)
    assert rates.suspects() == []  # 20 clicks were to be expected: too few to say
    add(rates, 62, 1000, 1, 10)
    assert rates.suspects() == ["click"]
    add(rates, 63, 1000, 2, 10)
    add(rates, 64, 1000, 10, 10)
    assert rates.suspects() == []


def test_masked_labels_are_no_samples_and_yesterday_is_forgotten() -> None:
    rates = LabelRates(["click", "order"])
    for minute in range(60):
        add(rates, minute, 1000, 100, NAN)
    add(rates, 60, 1000, NAN, 0)
    assert rates.suspects() == []
    add(rates, 61 + 24 * 60, 1000, 0, 0)
    assert rates.suspects() == []
