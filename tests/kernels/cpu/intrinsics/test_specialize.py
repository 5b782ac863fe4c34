"""Two variants of a kernel never share a name: Numba would give the second that it loads the first one's constants."""

from itertools import product

import pytest

from springtide.kernels.cpu.rows.gather import compiled_gather, compiled_pool
from springtide.kernels.cpu.rows.update import compiled_update
from springtide.kernels.row_optimizers import OPTIMIZERS

DIMS = (1, 4, 12, 16, 64, 65)
MADE = {
    "gather": [compiled_gather(dim) for dim in DIMS],
    "pool": [compiled_pool(dim, mode) for dim, mode in product(DIMS, ("sum", "mean", "max"))],
    "update": [compiled_update(*which) for which in product(DIMS, OPTIMIZERS, (False, True), (False, True))],
}


@pytest.mark.parametrize("kernel", MADE)
def test_each_variant_has_a_name_of_its_own(kernel: str) -> None:
    names = [made.py_func.__qualname__ for made in MADE[kernel]]
    assert len(set(names)) == len(names)


def test_a_variant_is_made_once() -> None:
    assert compiled_update(12, "sgd", False, False) is compiled_update(12, "sgd", False, False)
