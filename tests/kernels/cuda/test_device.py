"""The device of CuPy and torch, run on stand-ins for both: every call of it is made, with what those take."""

import numpy as np
import pytest
import torch

from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.kernels.backend import backend
from springtide.kernels.cuda.cupy_device import CupyDevice
from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.types import RowLayout
from tests.embeddings.tiers.spill_support import DictSpill
from tests.support.gpu_emulation.fake_gpu import install
from tests.support.gpu_emulation.simt import COMPILER

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="neither g++ nor clang++ is installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]
DIM = 4


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CupyDevice:
    install(monkeypatch)
    made = CupyDevice()
    made.threads = 32
    return made


def test_arrays_cross_and_come_back(device: CupyDevice) -> None:
    hosts = [np.arange(6).reshape(2, 3), np.array([True, False]), np.zeros((0, 4), np.float32), np.ones(5, np.uint16)]
    for there in (device.put_all(hosts), device.upload_async(hosts)()):
        for begin in (device.fetch, device.download_async):
            for mine, expected in zip(begin(there)(), hosts, strict=True):
                assert mine.dtype == expected.dtype
                np.testing.assert_array_equal(mine, expected)
    (column,) = device.put_all([np.arange(12).reshape(3, 4)])
    np.testing.assert_array_equal(device.fetch([column[:, 1]])()[0], [1, 5, 9])
    tensor = torch.arange(4)
    assert device.address(device.put(tensor)) != 0
    assert device.put(there[0]) is there[0]
    values, order = device.sort(device.put(np.array([3, 1, 3, 0], np.int32)))
    assert [*map(np.ndarray.tolist, device.fetch([values, order])())] == [[0, 1, 3, 3], [3, 1, 0, 2]]
    assert device.read(device.filled(1, np.int64, 0), device.filled(1, np.uint32, 1)) == [0, 0x01010101]
    assert device.tensor(device.put(np.arange(3))).tolist() == [0, 1, 2]


def test_a_table_with_lookahead_over_a_host_tier_runs_on_it(device: CupyDevice) -> None:
    layout = RowLayout(DIM, 1)
    below = HostTier(DictSpill(DIM, 1), num_rows=64, layout=layout, ops=backend("cpu"))
    ops, one = CudaOps(device, late=True), Capacity.of_rows(1)
    there = EmbeddingTable(TableConfig(dim=DIM), seed=0, spill=below, capacity=one, device=ops)
    here, rng, foreseen = EmbeddingTable(TableConfig(dim=DIM), seed=0), np.random.default_rng(0), None
    batches = [(np.zeros(60, np.uint16), rng.integers(0, 300, 60), np.zeros(60, np.int64)) for _ in range(4)]
    for keys, following in zip(batches, [*batches[1:], None], strict=True):
        lookup, other = there.lookup(*keys, prefetched=foreseen), here.lookup(*keys)
        foreseen = None if following is None else there.prefetch(*following)
        np.testing.assert_array_equal(ops.fetch(there.gather(lookup))[0], here.gather(other))
        grads = rng.standard_normal((60, DIM)).astype(np.float32)
        there.update(lookup, grads)
        here.update(other, grads)
    assert there.counters()["hits_host"] > 0
    assert len(there.take_delta().rows) == len(here.take_delta().rows)
    there.check_integrity()
    there.close()
