"""Which row is evicted first, as a number computed from the row itself: its L2 norm, or a function of the user's."""

# N rows, D dimension, S optimizer state width
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

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


ScoreFunction = Callable[[ScoredRows], "torch.Tensor"]


def l2_norm(rows: ScoredRows) -> torch.Tensor:
    """The length of each row's values, float32 (N): ids that taught the model little are evicted first."""
    import torch  # here, because a table without such a score needs no torch

    norms_N: torch.Tensor = torch.linalg.vector_norm(rows.values, dim=1)
    return norms_N


class RowScore:
    """Turns rows into the priorities by which a full bucket chooses the row that it evicts: the lowest first."""

    def __init__(self, ops: Ops, function: ScoreFunction) -> None:
        self.ops, self.function = ops, function
        self.is_running = False

    def set_priorities(self, store: Store, slots_N: Array) -> None:
        """Score the rows in these slots, as they are now; NO_SLOT is skipped. ValueError for a wrong result."""
        if self.ops.device == "cpu":
            slots_N = slots_N[slots_N != NO_SLOT]  # there no list is padded, but keys may have been forgotten
        if not len(slots_N):
            return
        columns = self.ops.read(store, slots_N)
        tensors = map(self.ops.tensor_of, (self.ops.keys_of(store, slots_N)[1], *columns[:4]))
        scores_N = self.scores(ScoredRows(*tensors))
        priorities_N = priority_of(self.ops.array_of(scores_N.float().contiguous()), self.ops.xp)
        self.ops.set_priorities(store, slots_N, priorities_N)

    def scores(self, rows: ScoredRows) -> torch.Tensor:
        """One number a row, (N)."""
        import torch

        self.is_running = True
        try:
            with torch.no_grad():
                scores_N = self.function(rows)
        finally:
            self.is_running = False
        if not isinstance(scores_N, torch.Tensor) or scores_N.shape != rows.ids.shape or scores_N.is_complex():
            given = tuple(scores_N.shape) if isinstance(scores_N, torch.Tensor) else type(scores_N).__name__
            raise ValueError(f"a score must be one number a row, a tensor ({len(rows.ids)},), not {given}")
        return scores_N
