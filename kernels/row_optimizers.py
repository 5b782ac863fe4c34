"""Row optimizers: what a table's update does to its rows; the formulas are in kernels/ops.py. Each is declared here.

To add one: its declaration below, its two functions in kernels/cpu/rows/optimizers.py, and, to have it on a GPU, its
struct in kernels/cuda/source/optimizers.cuh. What is missing fails when the backend is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from springtide.kernels.types import OptimizerStep

SETTINGS_OF_ALL = ("name", "lr", "weight_decay", "clip_norm", "seed")


@dataclass(frozen=True, kw_only=True)
class RowOptimizerKind:
    """ValueError if it is incomplete."""

    name: str
    vectors: int  # float32 states as long as the row
    scalars: int  # further ones, of the row; they come last, in its record
    settings: tuple[str, ...] = ()  # of OptimizerStep, that not every optimizer has
    defaults: Mapping[str, float] = field(default_factory=dict)  # where they are not those of RowOptimizer
    divides_by_lr: bool = False
    sums_squares: bool = (
        False  # its state is the sum of squared gradients: steps are small at first if eps is their size
    )
    sees_new_rows: bool = False  # is told whether the last vector is zero: no step was made yet
    cuda: str | None = None  # the struct of its CUDA kernel; None: it is refused on a GPU

    def __post_init__(self) -> None:
        """ValueError for what no kernel can do."""
        known = set(OptimizerStep._fields).difference(SETTINGS_OF_ALL)
        if unknown := {*self.settings, *self.defaults}.difference(known, ["lr"]):
            raise ValueError(f"row optimizer {self.name!r}: no setting of a step is named {sorted(unknown)}")
        if (self.vectors, self.scalars) not in STATES:
            raise ValueError(f"row optimizer {self.name!r}: vectors and scalars of state must be one of {STATES}")
        if self.sees_new_rows and not self.vectors:
            raise ValueError(f"row optimizer {self.name!r}: without vectors of state no row is known to be new")

    @property
    def sums_row_squares(self) -> bool:
        """True if a row's state is one number, the sum of its squared gradients."""
        return self.sums_squares and (self.vectors, self.scalars) == (0, 1)

    def state_width(self, dim: int) -> int:
        """Return how many float32 numbers of state a row has."""
        return self.vectors * dim + self.scalars

    def is_in_record(self, dim: int) -> bool:
        """Return True if the vector is one number, which is in the row's record."""
        return dim == 1 and (self.vectors, self.scalars) == (1, 0)


# a record has room for one number; a vector and a scalar of rows of one number would be two, and in the array of states
STATES = ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1))
KINDS = (
    RowOptimizerKind(name="sgd", vectors=0, scalars=0, cuda="Sgd"),
    RowOptimizerKind(name="adagrad", vectors=1, scalars=0, settings=("eps",), sums_squares=True, cuda="Adagrad"),
    RowOptimizerKind(
        name="rowwise-adagrad", vectors=0, scalars=1, settings=("eps",), sums_squares=True, cuda="RowwiseAdagrad"
    ),
    RowOptimizerKind(name="adam", vectors=2, scalars=1, settings=("eps", "beta1", "beta2"), cuda="Adam"),
    RowOptimizerKind(
        name="ftrl",
        vectors=2,
        scalars=0,
        settings=("l1", "l2", "beta"),
        divides_by_lr=True,
        sees_new_rows=True,
        cuda="Ftrl",
    ),
)
OPTIMIZERS = {kind.name: kind for kind in KINDS}


def check_kernels(device: str, kernels: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """ValueError unless there are kernels for the wanted row optimizers, and for no others."""
    if missing := sorted(wanted.keys() - kernels.keys()):
        raise ValueError(f"row optimizers without a kernel for {device}: {', '.join(missing)}")
    if unknown := sorted(kernels.keys() - wanted.keys()):
        raise ValueError(f"kernels for {device} of row optimizers that are not declared: {', '.join(unknown)}")


def names_with(setting: str) -> str:
    """Return the names of the optimizers that have a setting, for its description."""
    return ", ".join(kind.name for kind in KINDS if setting in kind.settings)


def check_device(name: str, device: str) -> None:
    """ValueError if the row optimizer has no kernel for the device."""
    if device == "cuda" and OPTIMIZERS[name].cuda is None:
        there = ", ".join(kind.name for kind in OPTIMIZERS.values() if kind.cuda is not None)
        raise ValueError(f'row optimizer {name!r} has no CUDA kernel: take one of {there}, or [train] device = "cpu"')
