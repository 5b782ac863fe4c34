"""When the clicks predicted have left the clicks seen: much further than before, and by no chance."""

# N samples
import numpy as np

from springtide.app.scores.samples import LabelSamples

SIGMAS = 6.0  # what trips the gate must also be significant
HALF_A_CLICK = 0.5  # on both sides of a ratio: a window without a click has one too


def calibration_fall(samples: LabelSamples, num_new: int, max_ratio: float) -> str:
    """Describe how far the newest `num_new` samples are from calibrated, beside those before them; "" if they are not.

    Both numbers of clicks are sums over weights. The error of their difference is the larger one of what the
    predictions say, sqrt(sum w^2 p (1 - p)), and of what the samples show, sqrt(sum w^2 (y - p)^2).
    """
    if len(samples.weights_N) < 2 * num_new or not np.isfinite(max_ratio):
        return ""
    old, new = samples.take(slice(None, -num_new)), samples.take(slice(-num_new, None))
    predicted, seen, sigmas = clicks(new)
    predicted_before, seen_before, _ = clicks(old)
    distance = wrong_by(predicted, seen)
    if sigmas <= SIGMAS or not distance > max_ratio * wrong_by(predicted_before, seen_before):
        return ""
    return (
        f"of the last {num_new:,} samples {predicted:,.1f} clicks were predicted and {seen:,.1f} seen, before them "
        f"{predicted_before:,.1f} and {seen_before:,.1f}; calibration_ratio is {max_ratio:g}"
    )


def clicks(samples: LabelSamples) -> tuple[float, float, float]:
    """Return the clicks predicted and seen, and by how many standard errors they differ."""
    weights_N, predicted_N, labels_N = samples.weights_N, samples.probabilities_N, samples.labels_N
    expected = float((weights_N**2 * predicted_N * (1 - predicted_N)).sum())
    shown = float((weights_N**2 * (labels_N - predicted_N) ** 2).sum())
    predicted, seen = float((weights_N * predicted_N).sum()), float((weights_N * labels_N).sum())
    error = np.sqrt(max(expected, shown))
    return predicted, seen, abs(predicted - seen) / error if error > 0 else 0.0


def wrong_by(predicted: float, seen: float) -> float:
    """Return predicted over seen, or the inverse: 1 or more."""
    ratio = (predicted + HALF_A_CLICK) / (seen + HALF_A_CLICK)
    return max(ratio, 1 / ratio)
