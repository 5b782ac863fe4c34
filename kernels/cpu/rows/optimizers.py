"""Row optimizers on the CPU: kernels/ops.py's formulas, each operation in float32.

`CPU_KERNELS` has two functions for each. `begin`, called once a row, returns its scalar state, a rate and a correction;
`move` takes up to 64 numbers of a row and returns the new ones.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from springtide.kernels.cpu.intrinsics.simd import absolute, copysign_nonzero, load, sqrt, store, zero_where_at_most
from springtide.kernels.njit import njit
from springtide.kernels.row_optimizers import OPTIMIZERS, check_kernels
from springtide.kernels.types import OptimizerStep, Store

NUM_CORRECTIONS = 4096  # steps of Adam whose bias corrections are looked up


class OptimizerConstants(NamedTuple):
    """A step's settings as the kernels take them: float32, what can be computed ahead computed in float64."""

    lr: Any
    eps: Any
    keep: Any  # of the row, after weight decay
    clip_norm: Any
    beta1: Any
    rest1: Any  # 1 - beta1
    beta2: Any
    rest2: Any
    l1: Any
    l2: Any
    beta: Any
    per_lr: Any  # 1 / lr
    exact_beta1: Any  # float64
    exact_beta2: Any


def check_step(store: Store, step: OptimizerStep) -> None:
    """ValueError where the optimizer is none, or another than the store was made for."""
    if step.name not in OPTIMIZERS:
        raise ValueError(f"optimizer name must be one of {', '.join(OPTIMIZERS)}, not {step.name!r}")
    width = store.state_width - store.layout.wide_width
    if OPTIMIZERS[step.name].state_width(store.dim) != width:
        raise ValueError(f"{step.name} at dim {store.dim} has no state of width {width}")
    if OPTIMIZERS[step.name].divides_by_lr and not step.lr > 0:
        raise ValueError(f"{step.name} divides by lr: it must be positive, not {step.lr}")


@lru_cache(maxsize=16)
def constants_of(step: OptimizerStep) -> OptimizerConstants:
    return OptimizerConstants(
        np.float32(step.lr),
        np.float32(step.eps),
        np.float32(1 - step.lr * step.weight_decay),
        np.float32(step.clip_norm),
        np.float32(step.beta1),
        np.float32(1 - step.beta1),
        np.float32(step.beta2),
        np.float32(1 - step.beta2),
        np.float32(step.l1),
        np.float32(step.l2),
        np.float32(step.beta),
        np.float32(1 / step.lr if step.lr else 0),
        float(step.beta1),
        float(step.beta2),
    )


@njit(nogil=True, cache=True)
def correction(beta: Any, num_steps: Any) -> Any:
    """1 / (1 - beta ** num_steps), in float64, rounded."""
    return np.float32(1.0 / (1.0 - beta**num_steps))


@njit(nogil=True, cache=True)
def _corrections(beta1: Any, beta2: Any, num: Any) -> Any:
    table = np.empty(2 * num, np.float32)
    for t in range(num):
        table[2 * t], table[2 * t + 1] = correction(beta1, t + 1.0), correction(beta2, t + 1.0)
    return table


@cache
def corrections(name: str, beta1: float, beta2: float) -> Any:
    """Adam's bias corrections of its first steps, two a step; for others nothing."""
    return _corrections(beta1, beta2, NUM_CORRECTIONS if name == "adam" else 0)


# compiled into the update, which closes over them; `mean_square` is the gradient's, and `states` has at `at` numbers of
# the first vector of state, `width` further on those of the second


@register_jitable
def begin_step(c: Any, corrections: Any, scalar: Any, mean_square: Any) -> Any:
    """Without a state of the whole row."""
    return scalar, c.lr, np.float32(1)


@register_jitable
def descend(
    row: Any, g: Any, states: Any, at: Any, width: Any, rest: Any, c: Any, rate: Any, correction2: Any, is_new: Any
) -> Any:
    return row - g * rate


@register_jitable
def begin_rowwise(c: Any, corrections: Any, scalar: Any, mean_square: Any) -> Any:
    squares = scalar + mean_square
    return squares, c.lr / (np.sqrt(squares) + c.eps), np.float32(1)


@register_jitable
def begin_adam(c: Any, corrections: Any, scalar: Any, mean_square: Any) -> Any:
    t = scalar + np.float32(1)
    if t >= 1 and t <= NUM_CORRECTIONS:
        at = np.uint64(2) * np.uint64(t) - np.uint64(2)
        return t, c.lr * corrections[at], corrections[at + np.uint64(1)]
    return t, c.lr * correction(c.exact_beta1, np.float64(t)), correction(c.exact_beta2, np.float64(t))


@register_jitable
def move_adagrad(
    row: Any, g: Any, states: Any, at: Any, width: Any, rest: Any, c: Any, rate: Any, correction2: Any, is_new: Any
) -> Any:
    s = load(g, states, at, rest) + g * g
    store(states, at, rest, s)
    return row - g * c.lr / (sqrt(s) + c.eps)


@register_jitable
def move_adam(
    row: Any, g: Any, states: Any, at: Any, width: Any, rest: Any, c: Any, rate: Any, correction2: Any, is_new: Any
) -> Any:
    m = load(g, states, at, rest) * c.beta1 + g * c.rest1
    v = load(g, states, at + width, rest) * c.beta2 + g * g * c.rest2
    store(states, at, rest, m)
    store(states, at + width, rest, v)
    return row - m * rate / (sqrt(v * correction2) + c.eps)


@register_jitable
def move_ftrl(
    row: Any, g: Any, states: Any, at: Any, width: Any, rest: Any, c: Any, rate: Any, correction2: Any, is_new: Any
) -> Any:
    z, n = load(g, states, at, rest), load(g, states, at + width, rest)
    if is_new:
        z = np.float32(0) - row * (c.beta * c.per_lr + c.l2) - copysign_nonzero(c.l1, row)
    more = n + g * g
    z = z + g - (sqrt(more) - sqrt(n)) * c.per_lr * row
    store(states, at, rest, z)
    store(states, at + width, rest, more)
    moved = (copysign_nonzero(c.l1, z) - z) / ((sqrt(more) + c.beta) * c.per_lr + c.l2)
    return zero_where_at_most(absolute(z), c.l1, moved)


class CpuKernel(NamedTuple):
    """The functions of a row optimizer."""

    begin: Callable[..., Any]
    move: Callable[..., Any]


CPU_KERNELS = {
    "sgd": CpuKernel(begin_step, descend),
    "adagrad": CpuKernel(begin_step, move_adagrad),
    "rowwise-adagrad": CpuKernel(begin_rowwise, descend),
    "adam": CpuKernel(begin_adam, move_adam),
    "ftrl": CpuKernel(begin_step, move_ftrl),
}
check_kernels("the CPU", CPU_KERNELS, OPTIMIZERS)
