"""What another policy would be worth, estimated from the log of one that draws with known propensities.

IPS (Horvitz and Thompson 1952), SNIPS (Swaminathan and Joachims 2015) and DR (Dudik, Langford and Li 2011) of the first
place of each request, as sums over requests: equal bit by bit however they are split into calls. Knows no policy:
a record brings the four numbers that POST /v1/rank has answered.
"""

# N requests
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

DEFAULT_CAP = 10.0
Array: TypeAlias = npt.NDArray[Any]
Float64Array: TypeAlias = npt.NDArray[np.float64]


class PolicyValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over the requests of which all five numbers are known.

    s is the weight of a request, w its importance weight min(p of the target / propensity, cap), r its reward, q the
    predicted reward of what was shown, v the expected reward of the target policy, d = v + w (r - q).
    """

    cap: float = DEFAULT_CAP
    num: int = 0
    num_refused: int = 0  # with a propensity or probability that is none
    s: float = 0.0
    s_clipped: float = 0.0
    s_w: float = 0.0
    s_r: float = 0.0
    s_wr: float = 0.0
    s_d: float = 0.0
    ss: float = 0.0
    ss_ww: float = 0.0
    ss_wr: float = 0.0
    ss_wwr: float = 0.0
    ss_wwrr: float = 0.0
    ss_d: float = 0.0
    ss_dd: float = 0.0

    def observe(
        self,
        reward_N: Array,
        propensity_N: Array,
        probability_N: Array,
        predicted_N: Array,
        value_N: Array,
        weights_N: Array | None = None,
    ) -> "PolicyValue":
        """Count requests: what was shown first brought `reward_N`, and the log's policy showed it with `propensity_N`.

        `probability_N`: with which the target policy shows it. `predicted_N`: its predicted reward. `value_N`: the
        target's expected reward. `weights_N`: of the requests, 1 by default. NaN in any of them is a request without
        the numbers. A propensity outside of (0, 1] or a probability outside of [0, 1] is refused, and counted.
        """
        weights_N = np.ones(len(reward_N)) if weights_N is None else weights_N
        columns = [np.asarray(each, np.float64) for each in (reward_N, propensity_N, probability_N, predicted_N)]
        columns += [np.asarray(each, np.float64) for each in (value_N, weights_N)]
        known_N = ~np.isnan(columns).any(axis=0) & (columns[5] > 0)
        r_N, pl_N, pt_N, q_N, v_N, s_N = (each[known_N] for each in columns)
        valid_N = (pl_N > 0) & (pl_N <= 1) & (pt_N >= 0) & (pt_N <= 1)
        num_refused = self.num_refused + int(len(valid_N) - valid_N.sum())
        if not valid_N.any():
            return msgspec.structs.replace(self, num_refused=num_refused)
        r_N, pl_N, pt_N, q_N, v_N, s_N = (each[valid_N] for each in (r_N, pl_N, pt_N, q_N, v_N, s_N))
        ratio_N = pt_N / pl_N
        w_N = np.minimum(ratio_N, self.cap)
        d_N, ss_N = v_N + w_N * (r_N - q_N), s_N * s_N
        terms = {
            "s": s_N,
            "s_clipped": s_N * (ratio_N > self.cap),
            "s_w": s_N * w_N,
            "s_r": s_N * r_N,
            "s_wr": s_N * w_N * r_N,
            "s_d": s_N * d_N,
            "ss": ss_N,
            "ss_ww": ss_N * w_N**2,
            "ss_wr": ss_N * w_N * r_N,
            "ss_wwr": ss_N * w_N**2 * r_N,
            "ss_wwrr": ss_N * (w_N * r_N) ** 2,
            "ss_d": ss_N * d_N,
            "ss_dd": ss_N * d_N**2,
        }
        sums = {name: _continued(getattr(self, name), term_N) for name, term_N in terms.items()}
        return msgspec.structs.replace(self, num=self.num + len(r_N), num_refused=num_refused, **sums)

    def plus(self, other: "PolicyValue") -> "PolicyValue":
        """Return the sums of both together; ValueError where their caps differ."""
        if other.cap != self.cap:
            raise ValueError(f"values with the caps {self.cap:g} and {other.cap:g} cannot be added: use one cap")
        names = [name for name in self.__struct_fields__ if name != "cap"]
        return PolicyValue(self.cap, **{name: getattr(self, name) + getattr(other, name) for name in names})

    def document(self) -> dict[str, float | None]:
        """Return the estimates with their standard errors; None where they are undefined.

        `logged` is what the log's own policy brought. `effective_samples`: how many requests of the target policy's own
        would say as much. `clipped`: the share whose weight the cap has cut, which biases the estimates towards 0.
        `mean_weight`: near 1 where propensities are right and little is cut; far from it they are not.
        """
        mean_of = (lambda total: total / self.s) if self.s > 0 else (lambda total: None)
        ips, dr = mean_of(self.s_wr), mean_of(self.s_d)
        snips = self.s_wr / self.s_w if self.s_w > 0 else None
        return {
            "requests": self.num,
            "refused": self.num_refused,
            "logged": mean_of(self.s_r),
            "ips": ips,
            "ips_error": self._error(self.ss_wwrr, self.ss_wr, ips, self.ss, self.s),
            "snips": snips,
            "snips_error": self._error(self.ss_wwrr, self.ss_wwr, snips, self.ss_ww, self.s_w),
            "dr": dr,
            "dr_error": self._error(self.ss_dd, self.ss_d, dr, self.ss, self.s),
            "effective_samples": self.s_w**2 / self.ss_ww if self.ss_ww > 0 else None,
            "clipped": mean_of(self.s_clipped),
            "mean_weight": mean_of(self.s_w),
        }

    def _error(self, squares: float, products: float, mean: float | None, units: float, total: float) -> float | None:
        """Return the root of the sum of (x - mean * unit)**2, over the total of units: of a ratio of sums too."""
        if mean is None or self.num < 2:
            return None
        return math.sqrt(max(squares - 2 * mean * products + mean**2 * units, 0.0)) / total


def _continued(total: float, terms_N: Float64Array) -> float:
    """Return the total and the terms, added one after the other."""
    return float(np.add.accumulate(np.concatenate([[total], terms_N]))[-1])


RECENT_REQUESTS = 20_000  # the window has the newest ones: so many to twice as many


class PolicyTotals(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a policy by all requests and by the newest ones."""

    whole: PolicyValue = PolicyValue()
    recent: PolicyValue = PolicyValue()  # fewer than RECENT_REQUESTS
    before: PolicyValue = PolicyValue()  # those before them

    @staticmethod
    def of_cap(cap: float) -> "PolicyTotals":
        """Return those of no request."""
        return PolicyTotals(*[PolicyValue(cap)] * 3)

    def observe(self, *columns_N: Array) -> "PolicyTotals":
        """Count requests by what `PolicyValue.observe` takes. The whole is the same however they are split."""
        return self._rolled(self.whole.observe(*columns_N), self.recent.observe(*columns_N))

    def plus(self, added: PolicyValue) -> "PolicyTotals":
        """Return the totals with the requests of another rank."""
        return self._rolled(self.whole.plus(added), self.recent.plus(added))

    def _rolled(self, whole: PolicyValue, recent: PolicyValue) -> "PolicyTotals":
        if recent.num < RECENT_REQUESTS:
            return PolicyTotals(whole, recent, self.before)
        return PolicyTotals(whole, PolicyValue(recent.cap), recent)

    def document(self) -> dict[str, dict[str, float | None]]:
        """Return the estimates of all requests and of the newest ones."""
        return {"whole": self.whole.document(), "window": self.before.plus(self.recent).document()}


@dataclass(frozen=True)
class PolicyFields:
    """Which numbers of a record say what other policies would have earned, as columns of `Columns.numbers_NK`."""

    numbers: tuple[str, ...] = ()  # the fields; the first is the propensity
    columns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by policy: probability, predicted, value
    caps: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(propensity: str, fields: Mapping[str, Sequence[str]], caps: Mapping[str, float]) -> "PolicyFields":
        """`fields`: by policy those of probability and, or none of them, of predicted reward and value."""
        numbers = tuple(dict.fromkeys([propensity, *(name for own in fields.values() for name in own)]))
        columns = {policy: tuple(map(numbers.index, own)) for policy, own in fields.items()}
        return PolicyFields(numbers, columns, caps)

    def requests(self, numbers_NK: Array, rewards_N: Array, weights_N: Array) -> dict[str, tuple[Array, ...]]:
        """Return by policy what `PolicyValue.observe` takes; a record without a propensity is no request."""
        found, nothing_N = dict[str, tuple[Array, ...]](), np.zeros(len(rewards_N))
        for policy, (probability, *others) in self.columns.items():
            predicted_N, value_N = (numbers_NK[:, column] for column in others) if others else (nothing_N, nothing_N)
            shown = numbers_NK[:, 0], numbers_NK[:, probability]
            found[policy] = rewards_N, *shown, predicted_N, value_N, weights_N
        return found

    def totals(self, totals: Mapping[str, PolicyTotals], policy: str) -> PolicyTotals:
        """Return those of a policy so far; they are reset when the cap has changed."""
        found, cap = totals.get(policy), self.caps[policy]
        return found if found is not None and found.whole.cap == cap else PolicyTotals.of_cap(cap)

    def document(self, totals: Mapping[str, PolicyTotals]) -> dict[str, Any]:
        """Return the estimates by policy; without `predicted` and `value` there is no DR."""
        found = {}
        for policy, columns in self.columns.items():
            found[policy] = self.totals(totals, policy).document()
            if len(columns) == 1:
                for part in found[policy].values():
                    part["dr"] = part["dr_error"] = None
        return found
