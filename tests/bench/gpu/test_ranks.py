"""The benchmark of a rank on a GPU runs from end to end without a GPU; its figures then mean nothing."""

import torch

from springtide.app.training.device import TrainDevice
from springtide.kernels.cuda.ops import CudaOps
from tests.bench.gpu import ranks
from tests.bench.gpu.train import Bench, Machine, Size
from tests.support.gpu_emulation.emulated_ops import device_of
from tests.support.gpu_emulation.transfer_stream import EmulatedTransferStream, replay_without_graph

TINY = Size(dims=(4,), batch_sizes=(16,), num_batches=2, repeats=1, kafka_samples=0, table_bytes="1MiB")


def bench_without_a_gpu() -> Bench:
    ops = CudaOps(device_of("host"), late=True)
    device = TrainDevice(torch.device("cpu"), EmulatedTransferStream(run_inline=False), None, ops)
    return Bench(Machine(device, ops, replay_without_graph, lambda: None), TINY)


def test_a_rank_learns_what_the_trainer_learns_and_the_cost_of_exchanging_is_told() -> None:
    alone, with_itself = ranks.run(bench_without_a_gpu(), "cpu")
    assert (alone.needed, with_itself.needed) == (0.99, None)
    assert min(*alone.ours, *with_itself.ours) > 0
