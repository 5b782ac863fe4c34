"""The optimizer that runs inside a table's update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """Row-wise Adagrad: one float32 of state a row, the running sum of its mean squared gradients."""

    name: str = "rowwise-adagrad"
    lr: float = 0.05
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.name != "rowwise-adagrad":
            raise ValueError(f"optimizer name must be 'rowwise-adagrad', not {self.name!r}")
        if not 0 <= self.lr < float("inf"):
            raise ValueError(f"optimizer lr must be finite and not negative, not {self.lr}")
        if not 0 < self.eps < float("inf"):
            raise ValueError(f"optimizer eps must be positive, not {self.eps}")

    @staticmethod
    def of(options: Mapping[str, Any]) -> "RowOptimizer":
        """From the table of a config, {"name", "lr", "eps"}; ValueError names an unknown key."""
        unknown = set(options) - {"name", "lr", "eps"}
        if unknown:
            raise ValueError(f"optimizer does not know {sorted(unknown)}: it takes name, lr, eps")
        return RowOptimizer(**options)

    @property
    def state_width(self) -> int:
        """Float32 numbers of state a row has."""
        return 1
