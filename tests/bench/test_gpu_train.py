"""The GPU's training benchmark runs from end to end where there is no GPU; what it measures there is nothing."""

import pytest
import torch

from app.training.device import TrainDevice
from tests.app.training.late_lane import LateLane, play_again
from tests.bench import gpu_train
from tests.bench.gpu_train import STEPS, Bench, Machine, Size

TINY = Size(dims=(4,), batch_sizes=(16,), num_batches=3, repeats=1, kafka_samples=48, table_bytes="8MiB")


def bench_without_a_gpu() -> Bench:
    device = TrainDevice(torch.device("cpu"), LateLane(at_once=False))
    return Bench(Machine(device, "cpu", play_again, lambda: None), TINY)


def test_every_case_runs_and_the_stages_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: model)
    cases = gpu_train.run(bench_without_a_gpu(), STEPS)
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
    bench, batches = bench_without_a_gpu(), gpu_train.make_batches(3, 16)
    monkeypatch.setattr(gpu_train, "AGREES", -1.0)
    with pytest.raises(SystemExit, match="nothing timed"):
        bench.column_case(4, batches, STEPS[0])


def test_without_a_gpu_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr("sys.argv", ["gpu_train"])
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        gpu_train.main()
