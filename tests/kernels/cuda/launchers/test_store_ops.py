"""Operations on lists and bags give the same on both backends; only a device's lists are padded."""

import numpy as np
import pytest

from springtide.kernels.backend import backend
from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.ops import Ops
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of, host


@pytest.fixture(params=["cpu", *DEVICES])
def ops(request: pytest.FixtureRequest) -> Ops:
    return backend("cpu") if request.param == "cpu" else CudaOps(device_of(request.param), late=True)


def test_unpadded_lists_have_no_padding(ops: Ops) -> None:
    is_padded = ops.readback_delay > 0
    (listed,) = ops.put(np.array([3, 5, -1, -1] if is_padded else [3, 5]))
    assert host(ops.unpadded(listed)).tolist() == [3, 5]
    assert int(np.asarray(host(ops.num_listed(listed))).reshape(-1)[0]) == 2
    assert ops.num_padding(listed) == (4 if is_padded else 0)


def test_every_key_is_in_the_bag_whose_offsets_enclose_it(ops: Ops) -> None:
    (offsets_B1,) = ops.put(np.array([0, 2, 2, 5]))
    assert host(ops.bags_of_keys(offsets_B1, 5)).tolist() == [0, 0, 2, 2, 2]


def test_values_are_counted(ops: Ops) -> None:
    (values_K,) = ops.put(np.array([0, 2, 2, 0, 2], np.uint8))
    assert host(ops.count_values(values_K, 4)).tolist() == [2, 0, 3, 0]
