"""Scores by numbers that records bring from serving: the score that was served, and propensities of policies.

Both are of the first label, at the first samples of it. Of several ranks they are those up to the newest exchange.
"""

# N samples
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from springtide.app.scores.policy_value import PolicyFields, PolicyTotals, PolicyValue
from springtide.app.scores.served import ServedScores
from springtide.stream.columns import Batch


@dataclass(frozen=True)
class UnsharedScores:
    """What a rank has counted since the last exchange."""

    served: ServedScores = field(default_factory=ServedScores)
    policies: Mapping[str, PolicyValue] = field(default_factory=dict)


class LoggedScores:
    """Sums over all records learned; versions hold them."""

    def __init__(self, fields: PolicyFields, num_ranks: int) -> None:
        self.fields, self._num_ranks = fields, num_ranks
        self.served = ServedScores()
        self.policies: dict[str, PolicyTotals] = {}
        self._unshared = UnsharedScores()  # of several ranks

    def observe(self, batch: Batch, label_share: float) -> None:
        """Count a batch. `label_share`: predictions served are divided by it, so as to be of all events that come."""
        if batch.served_N is None and not self.fields.columns:
            return
        is_scored_N, is_alone = batch.is_scored_N, self._num_ranks == 1
        rows = slice(None) if is_scored_N is None else np.flatnonzero(is_scored_N)
        labels_N, weights_N = batch.labels_NL[rows, 0], batch.weights_N[rows]
        served, policies = self._unshared.served, dict(self._unshared.policies)
        if batch.served_N is not None:
            own = self.served if is_alone else served
            served = own.observe(label_share * batch.served_N[rows], labels_N, weights_N)
            if is_alone:
                self.served = served
        if self.fields.columns and batch.numbers_NK is not None:
            for policy, columns in self.fields.requests(batch.numbers_NK[rows], labels_N, weights_N).items():
                if is_alone:
                    self.policies[policy] = self.fields.totals(self.policies, policy).observe(*columns)
                else:
                    own_value = policies.get(policy, PolicyValue(self.fields.caps[policy]))
                    policies[policy] = own_value.observe(*columns)
        if not is_alone:
            self._unshared = UnsharedScores(served, policies)

    def take_unshared(self) -> UnsharedScores:
        """Return, once, what this rank has counted since the last call."""
        unshared, self._unshared = self._unshared, UnsharedScores()
        return unshared

    def merge(self, of_ranks: Sequence[UnsharedScores]) -> None:
        """Add what each rank has taken. All ranks add alike."""
        for unshared in of_ranks:
            self.served = self.served.plus(unshared.served)
            for policy, value in unshared.policies.items():
                self.policies[policy] = self.fields.totals(self.policies, policy).plus(value)

    def restore(self, served: ServedScores, policies: Mapping[str, PolicyTotals]) -> None:
        """Continue from what a version holds."""
        self.served, self.policies = served, dict(policies)
