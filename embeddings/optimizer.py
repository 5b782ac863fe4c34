"""The settings of the optimizer that a table's update applies to its rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from msgspec import Meta, structs

from springtide.kernels.row_optimizers import OPTIMIZERS, names_with
from springtide.kernels.types import OptimizerStep
from springtide_client.system.settings import FINITE, Settings

if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = Literal[tuple(OPTIMIZERS)]


class RowOptimizer(Settings, frozen=True, kw_only=True):
    """The keys of `[table] optimizer`. The formulas are in kernels/ops.py, `Ops.update`."""

    name: Annotated[OptimizerName, Meta(description="Optimizer of the rows.")] = "rowwise-adagrad"
    lr: Annotated[float, Meta(ge=0, extra=FINITE, description="Learning rate.")] = 0.05
    eps: Annotated[float, Meta(gt=0, extra=FINITE, description=f"Added to the denominator ({names_with('eps')}).")] = (
        1e-8
    )
    beta1: Annotated[float, Meta(ge=0, lt=1, description=f"Decay of the mean gradient ({names_with('beta1')}).")] = 0.9
    beta2: Annotated[
        float, Meta(ge=0, lt=1, description=f"Decay of the mean squared gradient ({names_with('beta2')}).")
    ] = 0.999
    l1: Annotated[float, Meta(ge=0, extra=FINITE, description=f"L1 penalty ({names_with('l1')}).")] = 0.0
    l2: Annotated[float, Meta(ge=0, extra=FINITE, description=f"L2 penalty ({names_with('l2')}).")] = 0.0
    beta: Annotated[float, Meta(ge=0, extra=FINITE, description=f"Learning rate smoothing ({names_with('beta')}).")] = (
        1.0
    )
    weight_decay: Annotated[
        float, Meta(ge=0, extra=FINITE, description="Updated rows are multiplied by 1 - lr * weight_decay.")
    ] = 0.0
    clip_norm: Annotated[
        float, Meta(ge=0, extra=FINITE, description="Longest gradient of a row; longer ones are scaled. 0: no limit.")
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if OPTIMIZERS[self.name].divides_by_lr and self.lr == 0:
            raise ValueError(f"lr must be above 0 for {self.name}, which divides by it, not 0")
        if self.lr * self.weight_decay > 1:
            raise ValueError(
                f"lr * weight_decay must be at most 1, not {self.lr} * {self.weight_decay}: rows would change sign"
            )

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the settings that a table holds; what it leaves out has the optimizer's own default, if any."""
        kind = OPTIMIZERS.get(str(table.get("name")))
        return super().of({**kind.defaults, **table} if kind else table)

    def with_lr(self, lr: float) -> "RowOptimizer":
        """Return the same settings with another learning rate; ValueError if the optimizer does not allow it."""
        return structs.replace(self, lr=lr)

    def step(self, lr: float, seed: int) -> OptimizerStep:
        """Return what the ops take, at this learning rate; `seed` is that of the rounding to bfloat16."""
        return OptimizerStep(**(structs.asdict(self) | {"lr": lr}), seed=seed)

    def state_width(self, dim: int) -> int:
        """Return how many float32 numbers of state a row of `dim` numbers has."""
        return OPTIMIZERS[self.name].state_width(dim)
