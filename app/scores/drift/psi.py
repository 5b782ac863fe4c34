"""The population stability index of two histograms, and what it means.

PSI = sum over bins of (p - q) ln(p / q), the symmetric Kullback-Leibler divergence of the shares p and q. Below 0.1
nothing to speak of has changed, from 0.25 on the change is large (Siddiqi 2006).
"""

# B bins
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

MODERATE, LARGE = 0.1, 0.25
# two samples of one distribution differ by (bins - 1) (1/n + 1/m) on average; so many times that is no chance
CHANCE = 4.0

Level = Literal["none", "moderate", "large"]
LEVELS: tuple[Level, ...] = ("none", "moderate", "large")
Counts = npt.NDArray[Any]


def psi(reference_B: Counts, recent_B: Counts) -> float | None:
    """Return the index of two histograms with the same bins; None if one is empty.

    Half a sample is added to each bin that either uses, so that an empty one does not make it infinite.
    """
    used_B = (reference_B > 0) | (recent_B > 0)
    if not reference_B.sum() > 0 or not recent_B.sum() > 0:
        return None
    q_B, p_B = reference_B[used_B] + 0.5, recent_B[used_B] + 0.5
    q_B, p_B = q_B / q_B.sum(), p_B / p_B.sum()
    return float(((p_B - q_B) * np.log(p_B / q_B)).sum())


def psi_level(index: float, reference_B: Counts, recent_B: Counts) -> Level:
    """Return what an index of these histograms means; one that chance explains means nothing."""
    num_bins = int(((reference_B > 0) | (recent_B > 0)).sum())
    chance = (num_bins - 1) * (1 / float(reference_B.sum()) + 1 / float(recent_B.sum()))
    if index < max(MODERATE, CHANCE * chance):
        return "none"
    return "large" if index >= LARGE else "moderate"
