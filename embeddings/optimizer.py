"""The optimizer that runs inside a table's update: its settings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kernels.types import OPTIMIZERS, OptimizerStep, state_width_of


@dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """The keys of `[table] optimizer`; kernels/ops.py's `update` says what each optimizer does with them."""

    name: str = "rowwise-adagrad"  # or sgd, adagrad, adam, ftrl
    lr: float = 0.05
    eps: float = 1e-8  # adagrad, rowwise-adagrad, adam
    beta1: float = 0.9  # adam
    beta2: float = 0.999  # adam
    l1: float = 0.0  # ftrl
    l2: float = 0.0  # ftrl
    beta: float = 1.0  # ftrl
    weight_decay: float = 0.0  # of the rows an update touches: times 1 - lr * weight_decay
    clip_norm: float = 0.0  # longest gradient of a row; 0: any

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"optimizer name must be one of {', '.join(OPTIMIZERS)}, not {self.name!r}")
        for key in ("lr", "l1", "l2", "beta", "weight_decay", "clip_norm"):
            value = getattr(self, key)
            if not 0 <= value < float("inf"):
                raise ValueError(f"optimizer {key} must be finite and not negative, not {value}")
        if self.name == "ftrl" and self.lr == 0:
            raise ValueError("optimizer lr must be positive for ftrl, which divides by it, not 0")
        if not 0 < self.eps < float("inf"):
            raise ValueError(f"optimizer eps must be positive, not {self.eps}")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"optimizer {key} must be in 0 <= {key} < 1, not {getattr(self, key)}")
        if self.lr * self.weight_decay > 1:
            raise ValueError(
                f"optimizer lr * weight_decay must be at most 1, not {self.lr} * {self.weight_decay}: rows change sign"
            )

    @staticmethod
    def of(options: Mapping[str, Any]) -> "RowOptimizer":
        """From the table of a config; ValueError names an unknown key, or one whose value is no number."""
        known = [field.name for field in fields(RowOptimizer)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"optimizer does not know {unknown}: it takes {', '.join(known)}")
        for key, value in options.items():
            if key != "name" and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"optimizer {key} must be a number, not {value!r}")
        return RowOptimizer(**options)

    def with_lr(self, lr: float) -> "RowOptimizer":
        """The same at another learning rate; ValueError where it takes none such."""
        return replace(self, lr=lr)

    def step(self, lr: float, seed: int) -> OptimizerStep:
        """What the ops take: at this learning rate, with the seed of the rounding to bfloat16."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return OptimizerStep(**(values | {"lr": lr}), seed=seed)

    def state_width(self, dim: int) -> int:
        """Float32 numbers of state a row has."""
        return state_width_of(self.name, dim)
