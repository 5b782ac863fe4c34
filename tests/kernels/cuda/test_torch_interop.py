"""The CUDA backend beside torch on one GPU: memory is shared, work follows torch's stream, a step fits in a graph."""

from typing import Any

import numpy as np
import pytest

from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.types import OptimizerStep, RowLayout, Store
from tests.support.gpu_emulation.emulated_ops import device_of, host

pytestmark = pytest.mark.gpu
NUM, DIM = 4096, 64


def filled(ops: CudaOps, put: Any) -> tuple[Store, Any, Any]:
    """A store with some rows, their keys and slots."""
    features, ids = put(np.zeros(NUM, np.uint16)), put(np.arange(NUM))
    store = ops.allocate(2 * NUM, 64, RowLayout(DIM, 1))
    slots = ops.find_or_insert(store, features, ids, ops.hash_keys(features, ids), 1, 1).slots_U
    ops.create(store, slots, features, ids, 1, 0.1)
    return store, (features, ids), slots


def test_a_tensor_is_taken_and_written_without_a_copy() -> None:
    import torch

    device = device_of("gpu")
    ops = CudaOps(device)
    store, _, slots = filled(ops, device.put)
    out = torch.full((NUM, DIM), float("nan"), device="cuda")
    taken = device.put(out)
    assert device.address(taken) == out.data_ptr()
    ops.gather(store, slots, torch.arange(NUM, device="cuda"), out=taken)
    np.testing.assert_array_equal(out.cpu().numpy(), host(ops.read(store, slots).values_ND))


def test_work_follows_torchs_current_stream() -> None:
    import torch

    device = device_of("gpu")
    ops = CudaOps(device)
    store, _, slots = filled(ops, device.put)
    expected, stream = host(ops.read(store, slots).values_ND), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        inverse = torch.empty(NUM, dtype=torch.int64, device="cuda")
        torch.cuda._sleep(100_000_000)  # what is launched on another stream would read the positions before they are
        inverse.copy_(torch.arange(NUM, device="cuda"))
        rows = ops.gather(store, slots, inverse)
    stream.synchronize()
    np.testing.assert_array_equal(host(rows), expected)


def test_a_captured_step_is_played_again_as_it_was() -> None:
    import torch

    device = device_of("gpu")
    eager, patient = CudaOps(device, exact=False), CudaOps(device)
    step, put = OptimizerStep("rowwise-adagrad", 0.1), device.put
    rng = np.random.default_rng(0)
    ids, times = put(rng.integers(0, NUM, 2 * NUM)), put(np.zeros(2 * NUM, np.int64))
    features = put(np.zeros(2 * NUM, np.uint16))
    grads = put(rng.standard_normal((2 * NUM, DIM)).astype(np.float32))

    def train(store: Store) -> None:
        unique = eager.unique(features, ids, times)
        placed = eager.find_or_insert(store, *unique[:3], 2, 2)
        order, offsets = eager.group(unique.inverse_K, unique.occurrences_U)
        eager.update(store, placed.slots_U, order, offsets, grads, unique.last_seen_U, step, False, 0, 2 * NUM)

    played, (store, _, slots) = filled(patient, put), filled(patient, put)
    for _ in range(4):
        train(store)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train(played[0])  # compiles, which a capture must not
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train(played[0])
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    for mine, expected in zip(patient.read(played[0], played[2]), patient.read(store, slots), strict=True):
        np.testing.assert_array_equal(host(mine), host(expected))
