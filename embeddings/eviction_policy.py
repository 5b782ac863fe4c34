"""Eviction policies: which row a full bucket evicts. Each is one object, declared once, with all that a table needs.

A row's priority is a number; the lowest is evicted, and among equal ones the row that was looked up longest ago.
"""

# N rows, D dimension, S optimizer state width
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from springtide.kernels.ops import Ops
from springtide.kernels.types import NO_SLOT, Array, Store, priority_of

if TYPE_CHECKING:
    import torch


class ScoredRows(NamedTuple):
    """Rows as tensors on the device of their table, for a score or a predicate. They are copies."""

    ids: torch.Tensor  # int64 (N)
    values: torch.Tensor  # float32 (N, D)
    states: torch.Tensor  # float32 (N, S): optimizer state
    counts: torch.Tensor  # int64 (N): how often the id was learned from
    last_seen_ms: torch.Tensor  # int64 (N)


class CountedKeys(NamedTuple):
    """Keys of rows and how often each was learned from, on the device of their table."""

    ops: Ops
    features_N: Array  # uint16
    ids_N: Array  # int64
    counts_N: Array  # int64
    seed: int  # of the table


ScoreFunction = Callable[[ScoredRows], "torch.Tensor"]
KeyFunction = Callable[[CountedKeys], Array]


class PrioritySource(Enum):
    """The source of a row's priority; the further down, the more it costs."""

    NOTHING = auto()  # all are equal: the time of the last look-up alone decides
    COUNT = auto()  # it is the row's count, which the kernels note as they count
    CALLER = auto()  # the caller of `lookup` gives one with every key
    KEYS = auto()  # a function of keys and counts, called whenever rows are created, fetched, written or learned
    ROW = auto()  # a function of whole rows, called then too, which reads them once more


@dataclass(frozen=True, kw_only=True)
class EvictionPolicy:
    """ValueError if it is incomplete."""

    name: str
    description: str  # the row that is evicted first
    source: PrioritySource
    of_keys: KeyFunction | None = None  # float32 (N)
    of_row: ScoreFunction | None = None

    def __post_init__(self) -> None:
        """ValueError unless there is the function that the source needs, and no other."""
        given = {PrioritySource.KEYS: self.of_keys, PrioritySource.ROW: self.of_row}
        if not (self.name and self.description):
            raise ValueError("an eviction policy has a name and a description")
        for source, function in given.items():
            if (source is self.source) != (function is not None):
                raise ValueError(f"the eviction policy {self.name!r} by {self.source.name} needs its function alone")

    @property
    def takes_scores(self) -> bool:
        """True if the caller gives priorities; several ranks do not exchange them."""
        return self.source is PrioritySource.CALLER

    def by(self, score: ScoreFunction | None) -> EvictionPolicy:
        """This policy, or with a score the one by it. ValueError if it does not leave room for one."""
        if score is None:
            return self
        if not self.takes_scores:
            raise ValueError(f'a score needs eviction = "custom", not "{self.name}"')
        return replace(self, source=PrioritySource.ROW, of_row=score)


def l2_norm(rows: ScoredRows) -> torch.Tensor:
    """The length of each row's values, float32 (N): ids that taught the model little are evicted first."""
    import torch  # here, because a table without such a score needs no torch

    norms_N: torch.Tensor = torch.linalg.vector_norm(rows.values, dim=1)
    return norms_N


POLICIES = (
    EvictionPolicy(name="lru", description="the one seen longest ago", source=PrioritySource.NOTHING),
    EvictionPolicy(name="lfu", description="the one learned from least often", source=PrioritySource.COUNT),
    EvictionPolicy(
        name="l2-norm",
        description="the one whose values have the smallest norm",
        source=PrioritySource.ROW,
        of_row=l2_norm,
    ),
    EvictionPolicy(name="custom", description="the one with the lowest `score`", source=PrioritySource.CALLER),
)
EVICTION_POLICIES = {policy.name: policy for policy in POLICIES}


class Priorities:
    """Sets the priorities of a table's rows as its policy says. NO_SLOT is skipped."""

    def __init__(self, ops: Ops, policy: EvictionPolicy, seed: int) -> None:
        self.ops, self.policy, self.seed = ops, policy, seed
        self.by_count = policy.source is PrioritySource.COUNT  # learning sets them itself
        self.is_running = False  # a function of rows

    def set_counts(self, store: Store, slots_N: Array, counts_N: Array) -> None:
        """After rows were put here with these counts; `refresh` is called too."""
        if self.by_count:
            self.ops.set_priorities(store, slots_N, counts_N)

    def refresh(self, store: Store, slots_N: Array) -> None:
        """After rows were put here, or have learned. ValueError for a wrong result of the policy's function."""
        if self.policy.of_keys is None and self.policy.of_row is None:
            return
        if self.ops.device == "cpu":
            slots_N = slots_N[slots_N != NO_SLOT]  # there no list is padded, but keys may have been forgotten
        if not len(slots_N):
            return
        features_N, ids_N = self.ops.keys_of(store, slots_N)
        if self.policy.of_keys is not None:
            counts_N = self.ops.counts_of(store, slots_N)
            scores_N = self.policy.of_keys(CountedKeys(self.ops, features_N, ids_N, counts_N, self.seed))
        else:
            columns = self.ops.read(store, slots_N)
            scores_N = self._scores_of(ScoredRows(*map(self.ops.tensor_of, (ids_N, *columns[:4]))))
        self.ops.set_priorities(store, slots_N, priority_of(scores_N, self.ops.xp))

    def _scores_of(self, rows: ScoredRows) -> Array:
        """One number a row, float32 (N)."""
        import torch

        assert self.policy.of_row is not None
        self.is_running = True
        try:
            with torch.no_grad():
                scores_N: Any = self.policy.of_row(rows)
        finally:
            self.is_running = False
        if not isinstance(scores_N, torch.Tensor) or scores_N.shape != rows.ids.shape or scores_N.is_complex():
            given = tuple(scores_N.shape) if isinstance(scores_N, torch.Tensor) else type(scores_N).__name__
            raise ValueError(f"a score must be one number a row, a tensor ({len(rows.ids)},), not {given}")
        return self.ops.array_of(scores_N.float().contiguous())
