"""What a sample counts for a label whose events may come after the window: one learned again, or as a late positive.

Formulas: deploy/docs/decisions/stream.md. All weights of one impression add up to 1 in expectation.
"""

import math
from typing import Any

from springtide.kernels.njit import njit

LEAST = 1e-12  # of a divisor: p and F may both be 1


@njit(nogil=True, cache=True)
def late_weight(y: float, p: float, share: float, is_settled: int) -> Any:
    """Return the weight of a label y that was predicted with p; 1 without a share.

    `share`: F, of the positives that come within the window. `is_settled`: every impression is learned again at the
    end (DEFER, Gu et al. 2021, half of its weights); else those with a late event are (ES-DFM, Yang et al. 2021,
    without its common factor).
    """
    if math.isnan(share):
        return 1.0
    if is_settled > 0:
        return 1.0 / (1.0 + share) if y > 0.5 else (1.0 - p) / max(2.0 - p - p * share, LEAST)
    return 1.0 if y > 0.5 else (1.0 - p) / max(1.0 - p * share, LEAST)
