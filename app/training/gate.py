"""The health gate: decides before a version is published whether the model is healthy.

It looks for parameters and scores that are not finite, for a norm of the dense net that explodes, and compares the
newest samples' logloss and calibration, scored before they were learned, with those of earlier samples. Knows no log
and no stream.
"""

# N samples
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from springtide.app.errors import UserError
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.samples import LabelSamples
from springtide.app.training.config import GateConfig
from springtide.app.training.step.learner import Learner
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.trainer_status import GateStatus
from springtide_client.errors import LogError
from springtide_client.log.directory import LogDirectory

logger = logging.getLogger(__name__)

MAX_NON_FINITE_FRACTION = 0.5  # of the newest samples: a few may be odd themselves, and are scored as a coin flip
SMALL_NORM = 1.0  # a smaller norm counts as this: growing from nearly 0 is no explosion


class Verdict(NamedTuple):
    """Why a version is held back, and the newest good version from before the cause."""

    reason: str  # not_finite, norm, logloss, calibration
    detail: str
    good: int


class GoodVersion(NamedTuple):
    """A version that passed, with its samples and the norm of its dense net."""

    number: int
    samples: int
    norm: float


class Gate:
    """Judges the model against the versions that passed before."""

    def __init__(
        self, config: GateConfig, window_samples: int, *, look_back: Callable[[int], int | None] = lambda samples: None
    ) -> None:
        """`look_back` returns the newest version of at most that many samples, if none since `reset` has so few."""
        self.config = config
        self._look_back = look_back
        self._num_new = max(1, min(config.logloss_samples, window_samples // 2))
        self.held: Verdict | None = None
        self.needs_operator = False  # automatic rollback is disabled until `reset`: a command must resolve the hold
        self.trips = 0  # since this trainer's start
        self.last: Verdict | None = None  # the newest verdict, also after it was resolved
        self._good: deque[GoodVersion] = deque()
        self._judged_step = -1
        self._window_judged_at = float("-inf")  # samples trained
        self._norm = -1, 0.0  # number of steps, and the norm of the net after them

    def reset(self, number: int, learner: Learner, num_samples: int) -> None:
        """Continue from this version, which counts as good; nothing is held."""
        self.held, self.needs_operator = None, False
        self._norm = learner.steps, parameter_norm(learner)
        self._good = deque([GoodVersion(number, num_samples, self._norm[1])])
        self._judged_step, self._window_judged_at = learner.steps, float("-inf")

    def judge(self, learner: Learner, scores: ProgressiveScores, num_samples: int) -> Verdict | None:
        """Return what speaks against publishing this model, if anything; it stays in `held` until `reset`."""
        if self.held is None and learner.steps != self._judged_step:
            self.held = self._judge(learner, scores, num_samples)
            if self.held is not None:
                self.trips += 1
                self.last = self.held
                logger.error("the health gate holds the model back", extra=self.held._asdict())
        return self.held

    def on_published(self, number: int, learner: Learner, num_samples: int) -> None:
        """Remember that the judged model is published as this version."""
        if learner.steps == self._judged_step:
            self._good[-1] = self._good[-1]._replace(number=number)  # nothing was learned: the same model
        else:
            self._judged_step = learner.steps
            step, norm = self._norm
            self._good.append(
                GoodVersion(number, num_samples, norm if step == learner.steps else parameter_norm(learner))
            )
            while len(self._good) > 1 and self._good[1].samples <= num_samples - self._num_new:
                self._good.popleft()

    def status(self) -> GateStatus:
        """Return the gate's part of the trainer's status; it does not know the number of rollbacks."""
        verdict = self.held or self.last
        return GateStatus(
            state="open" if self.held is None else "holding",
            action=self.config.action,
            reason=None if verdict is None else verdict.reason,
            detail=None if verdict is None else verdict.detail,
            trips=self.trips,
        )

    def _judge(self, learner: Learner, scores: ProgressiveScores, num_samples: int) -> Verdict | None:
        newest, oldest = self._good[-1], self._good[0]
        norm, limit = parameter_norm(learner), self.config.norm_ratio * max(oldest.norm, SMALL_NORM)
        self._norm = learner.steps, norm
        # if the norm is finite, so is every parameter, and only the statistics are left to check
        finite = learner.model.named_parameters(remove_duplicate=False) if math.isfinite(norm) else ()
        unchecked = learner.model.state_dict()
        for name, _ in finite:
            unchecked.pop(name, None)
        if bad := first_non_finite(unchecked):
            return Verdict("not_finite", f"{bad} of the dense net has numbers that are not finite", newest.number)
        if norm > limit:
            detail = f"the dense net's norm went from {oldest.norm:.4g} to {norm:.4g}, norm_ratio is "
            return Verdict("norm", f"{detail}{self.config.norm_ratio:g}", newest.number)
        # versions may be closer than samples that could change the verdict
        if num_samples - self._window_judged_at < self._num_new // WINDOW_PARTS:
            return None
        self._window_judged_at = num_samples
        if (fraction := scores.non_finite_fraction(self._num_new)) > MAX_NON_FINITE_FRACTION:
            detail = f"the net gave {fraction:.0%} of the last {self._num_new:,} samples a score that is not finite"
            return Verdict("not_finite", detail, self._good_before(num_samples - self._num_new))
        for number, label in enumerate(scores.labels):
            samples = scores.window_of_label(number)
            for reason, detail in self._rises(samples, is_value=scores.is_value(number)):
                return Verdict(reason, f"{label}: {detail}", self._good_before(num_samples - self._num_new))
        return None

    def _good_before(self, num_samples: int) -> int:
        """Return the newest good version of at most that many samples, else the oldest that is known."""
        before = [good.number for good in self._good if good.samples <= num_samples]
        return before[-1] if before else self._look_back(num_samples) or self._good[0].number

    def _rises(self, samples: LabelSamples, *, is_value: bool) -> Iterator[tuple[str, str]]:
        """Yield a reason and its description for what became worse; of a value it is the squared error."""
        if detail := self._logloss_rise(samples.losses_N, samples.weights_N):
            yield "logloss", detail.replace("the logloss", "the squared error") if is_value else detail
        if is_value:
            return
        if detail := calibration_fall(samples, self._num_new, self.config.calibration_ratio):
            yield "calibration", detail

    def _logloss_rise(self, losses_N: "np.ndarray[Any, Any]", weights_N: "np.ndarray[Any, Any]") -> str:
        """Describe a significant rise of the newest losses over earlier ones; "" if there is none."""
        num_new = self._num_new
        if len(losses_N) < 2 * num_new:
            return ""
        old, old_error = mean_and_error(losses_N[:-num_new], weights_N[:-num_new])
        new, new_error = mean_and_error(losses_N[-num_new:], weights_N[-num_new:])
        if not new > max(self.config.logloss_ratio * old, old + SIGMAS * float(np.hypot(old_error, new_error))):
            return ""
        return (
            f"the logloss of the last {num_new:,} samples is {new:.4g}, it was {old:.4g}; "
            f"logloss_ratio is {self.config.logloss_ratio:g}"
        )


def mean_and_error(losses_N: "np.ndarray[Any, Any]", weights_N: "np.ndarray[Any, Any]") -> tuple[float, float]:
    """Return the weighted mean and its standard error; NaN if nothing has weight."""
    weight = float(weights_N.sum())
    if not weight > 0:
        return float("nan"), float("nan")
    mean = float((weights_N * losses_N).sum() / weight)
    return mean, float(np.sqrt(((weights_N * (losses_N - mean)) ** 2).sum())) / weight


def parameter_norm(learner: Learner) -> float:
    """Return the norm of all parameters of the dense net."""
    parameters = [parameter.detach() for parameter in learner.model.parameters()]
    return float(torch.nn.utils.get_total_norm(parameters)) if parameters else 0.0


def first_non_finite(named: Mapping[str, torch.Tensor]) -> str:
    """Return the name of the first tensor with NaN or infinity; "" if there is none."""
    numbers = [value for value in named.values() if value.is_floating_point()]
    if not numbers or math.isfinite(torch.nn.utils.get_total_norm(numbers)):  # then every element is finite
        return ""
    for name, value in named.items():
        # the sum reads the tensor once; if it is finite, so is every element, and if not, it may only have overflowed
        if value.is_floating_point() and not (torch.isfinite(value.sum()) or bool(torch.isfinite(value).all())):
            return str(name)
    return ""


WINDOW_PARTS = 8  # the window is judged again once this part of the recent samples is new
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


def last_good_before(directory: LogDirectory, num_samples: int) -> int | None:
    """Return the newest version of at most that many samples; None if the log cannot be read.

    No version older than the newest rollback or changed schema is returned: what was learned before it does not lead to
    the present.
    """
    try:
        index = LogIndex(directory)
        begin = index.begin_of(index.numbers[-1])
        number = max(index.numbers[0], begin)
        for entry in reversed(index.entries):
            if entry.number < begin:
                return begin
            meta = entry.read_summary().meta
            number = entry.number
            if meta.samples_trained <= num_samples or meta.restores:
                return number
    except (UserError, LogError) as error:
        logger.warning("no earlier version was found", extra={"samples": num_samples, "reason": str(error)})
        return None
    return number


def oldest_restorable(directory: LogDirectory, number: int) -> int:
    """Return this version, or the next one that can be restored if retention has deleted what leads to it."""
    if number >= min(directory.scan().bases, default=0):
        try:
            index = LogIndex(directory)
        except (UserError, LogError):
            return number
        return next((n for n in index.numbers if n >= number and index.is_restorable(n)), number)
    return min(directory.scan().bases, default=number)
