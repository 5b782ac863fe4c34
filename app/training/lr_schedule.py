"""The learning rate as a function of the samples trained, so that a restarted trainer goes on with it. No torch."""

import math
from typing import Annotated, Literal

from msgspec import Meta

from springtide_client.system.settings import FINITE, Settings


class LearningRateSchedule(Settings, frozen=True, kw_only=True):
    """The keys of `[train] lr_schedule`: a factor from 0 to 1, by which learning rates are multiplied.

    "linear" and "cosine" (Loshchilov and Hutter 2017, without restarts) fall to `final_factor` and stay there.
    "inverse-sqrt" (Vaswani et al. 2017) falls with the square root of the samples, and never ends.
    """

    name: Annotated[
        Literal["constant", "linear", "cosine", "inverse-sqrt", "piecewise"],
        Meta(description="How the learning rate goes on after the warm-up."),
    ] = "constant"
    warmup_samples: Annotated[
        int, Meta(ge=0, description="The learning rate rises from 0 to `lr` over the first so many samples of the log.")
    ] = 0
    decay_samples: Annotated[
        int, Meta(ge=0, description="Samples after the warm-up over which it falls (linear, cosine).")
    ] = 0
    final_factor: Annotated[
        float, Meta(ge=0, le=1, extra=FINITE, description="What it falls to, as a factor of `lr` (linear, cosine).")
    ] = 0.1
    boundaries: Annotated[
        tuple[int, ...], Meta(description="Numbers of samples at which the next factor begins, ascending (piecewise).")
    ] = ()
    factors: Annotated[
        tuple[float, ...], Meta(description="The factor of `lr` from each boundary on, from 0 to 1 (piecewise).")
    ] = ()
    rows: Annotated[
        bool, Meta(description="The rows' learning rate follows the schedule too. Not with ftrl, which divides by it.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        falls, steps = self.name in ("linear", "cosine"), self.name == "piecewise"
        if falls != (self.decay_samples > 0):
            raise ValueError(f'decay_samples {_belongs(falls)} name = "{self.name}"')
        if self.name == "inverse-sqrt" and not self.warmup_samples:
            raise ValueError('warmup_samples must be at least 1 with name = "inverse-sqrt", which falls from there on')
        if steps != bool(self.boundaries):
            raise ValueError(f'boundaries {_belongs(steps)} name = "{self.name}"')
        if len(self.boundaries) != len(self.factors):
            counts = f"{len(self.boundaries)} and {len(self.factors)}"
            raise ValueError(f"boundaries and factors must be as many, not {counts}")
        if any(second <= first for first, second in zip((0, *self.boundaries), self.boundaries, strict=False)):
            raise ValueError(f"boundaries must be above 0 and ascending, not {list(self.boundaries)}")
        if not all(0 <= factor <= 1 for factor in self.factors):
            raise ValueError(f"factors must be from 0 to 1, not {list(self.factors)}")

    @property
    def is_constant(self) -> bool:
        """True if the factor is 1 always."""
        return self.name == "constant" and not self.warmup_samples

    def factor(self, num_samples: int) -> float:
        """Return the factor of a step after which so many samples are trained."""
        if num_samples < self.warmup_samples:
            return num_samples / self.warmup_samples
        return self._after_warmup(num_samples)

    def _after_warmup(self, num_samples: int) -> float:
        if self.name == "inverse-sqrt":
            return math.sqrt(self.warmup_samples / num_samples)
        if self.name == "piecewise":
            passed = sum(boundary <= num_samples for boundary in self.boundaries)
            return self.factors[passed - 1] if passed else 1.0
        if self.name == "constant":
            return 1.0
        part = min(1.0, (num_samples - self.warmup_samples) / self.decay_samples)
        left = 1 - part if self.name == "linear" else (1 + math.cos(math.pi * part)) / 2
        return self.final_factor + (1 - self.final_factor) * left


def _belongs(is_needed: bool) -> str:
    return "must be given with" if is_needed else "does not go with"
