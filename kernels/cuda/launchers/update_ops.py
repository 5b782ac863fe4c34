"""The update: gradients summed by key, and one optimizer step per row."""

# K keys of a batch, U unique keys, B rows of gradients, D dimension
import re
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import mixed_seed_of
from springtide.kernels.cpu.rows.optimizers import check_step, constants_of, corrections
from springtide.kernels.cuda.device import Array, Device
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.launchers.row_ops import NULL, defines_of
from springtide.kernels.cuda.sources import Defines, source_of
from springtide.kernels.cuda.store import arrays_of
from springtide.kernels.row_optimizers import OPTIMIZERS, RowOptimizerKind, check_device, check_kernels
from springtide.kernels.types import OptimizerStep, Store

LONG = 256  # occurrences of a key beyond which they are summed in parts: gradients.cuh


def num_lanes(dim: int) -> int:
    """Numbers of a row that are handled at once."""
    return next((num for num in (1, 8, 16, 32) if dim <= num), 64)


def group_of(dim: int) -> int:
    """Threads of a row."""
    return max(1, num_lanes(dim) // 4)


def num_part_floats(num_keys: int, dim: int) -> int:
    """Scratch for the sums of parts: two for each window of LONG occurrences."""
    lanes = num_lanes(dim)
    return 2 * (-(-num_keys // LONG) + 1) * (-(-dim // lanes) * lanes)


CUDA_KINDS = {kind.cuda: kind for kind in OPTIMIZERS.values() if kind.cuda is not None}
check_kernels(
    "CUDA", dict.fromkeys(re.findall(r"^struct (\w+) : RowOptimizer ", source_of("update"), re.M)), CUDA_KINDS
)


def optimizer_defines(kind: RowOptimizerKind) -> Defines:
    """Definitions of the update besides those of the rows. ValueError if the optimizer has no CUDA kernel."""
    check_device(kind.name, "cuda")
    assert kind.cuda is not None
    states = ("STATE_VECTORS", kind.vectors), ("STATE_SCALARS", kind.scalars)
    return ("OPTIMIZER", kind.cuda), *states, ("SEES_NEW_ROWS", int(kind.sees_new_rows))


class UpdateOps(Launcher):
    """The update of kernels/ops.py."""

    def __init__(self, device: Device | None = None, *, exact: bool = True, late: bool = False) -> None:
        super().__init__(device, exact=exact, late=late)
        self._corrections_of_betas: dict[tuple[float, float], Array] = {}

    def update(
        self,
        store: Store,
        slots_U: Array,
        order_K: Array,
        offsets_U1: Array,
        grads_BD: Array,
        last_seen_U: Array,
        step: OptimizerStep,
        count_priority: bool,
        start: int,
        stop: int,
        bags_K: Array | None = None,
        scales_K: Array | None = None,
    ) -> tuple[Array, int]:
        check_step(store, step)
        slots_U, order_K = self._array("slots", slots_U, np.int64, -1), self._array("order", order_K, np.int64, -1)
        num_unique, num_keys, dim, device = len(slots_U), len(order_K), store.dim, self._device
        if not 0 <= start <= stop <= num_unique:
            raise ValueError(f"the keys {start}..{stop} of {num_unique}")
        offsets_U1 = self._array("offsets", offsets_U1, np.int64, num_unique + 1)
        last_seen_U = self._array("last-seen", last_seen_U, np.int64, num_unique)
        grads_BD = self._rows("gradients", grads_BD, num_keys if bags_K is None else -1, dim)
        bags = NULL if bags_K is None else self._array("bags", bags_K, np.int64, num_keys)
        scales = NULL if scales_K is None else self._array("scales", scales_K, np.float32, num_keys)
        batch = (order_K, offsets_U1, np.int64(num_unique), grads_BD, bags, scales)
        defines = (*defines_of(store), *optimizer_defines(OPTIMIZERS[step.name]))
        parts = device.empty(num_part_floats(num_keys, dim), np.float32)
        windows = -(-num_keys // LONG)
        self._launch("update", "sum_parts", windows * group_of(dim), *batch, parts, defines=defines)
        p, num = arrays_of(store), stop - start
        fresh_U, num_refused_1 = device.empty(num, np.int64), device.filled(1, np.int64, 0)
        *numbers, exact_beta1, exact_beta2 = constants_of(step)
        self._launch(
            "update",
            "update_rows",
            num * group_of(dim),
            *(*p.keys, p.values_CD, p.meta, p.states_CS, np.int64(p.states_CS.shape[1])),
            *(slots_U, *batch, parts, last_seen_U),
            *(*numbers, np.float64(exact_beta1), np.float64(exact_beta2), self._corrections(step)),
            *(mixed_seed_of(step.seed), np.int32(count_priority), np.int64(start), np.int64(stop)),
            *(fresh_U, num_refused_1),
            defines=defines,
        )
        fresh_N = self._list_of(num, np.int64, may_be_late=True)
        num_fresh_1 = self._listed("row_metadata", "fresh", num, (fresh_U,), (fresh_N,))
        if self._late:
            return fresh_N, num_refused_1
        num_fresh, num_refused = self._device.read(num_fresh_1, num_refused_1)
        return fresh_N[:num_fresh], num_refused

    def _corrections(self, step: OptimizerStep) -> Any:
        """Adam's bias corrections on the device: put there once for each pair of betas."""
        if step.name != "adam":
            return NULL
        betas = (step.beta1, step.beta2)
        if betas not in self._corrections_of_betas:
            self._corrections_of_betas[betas] = self._device.put(corrections("adam", *betas))
        return self._corrections_of_betas[betas]
