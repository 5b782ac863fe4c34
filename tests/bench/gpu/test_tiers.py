"""The benchmark of a table larger than the GPU's memory runs from end to end without a GPU."""

import pytest

from springtide.kernels.cuda.ops import CudaOps
from tests.bench.gpu import tiers
from tests.bench.gpu.tiers import Bench, Size, run
from tests.support.gpu_emulation.emulated_ops import device_of
from tests.support.gpu_emulation.transfer_stream import EmulatedTransferStream

TINY = Size(
    churn_dim=6,
    churn_rows=128,
    step_dim=6,
    feature_rows=40,
    num_keys=60,
    num_steps=2,
    repeats=1,
    link_bytes=1 << 12,
)


def bench_without_a_gpu() -> Bench:
    return Bench(
        CudaOps(device_of("host", seed=1), late=True), EmulatedTransferStream(run_inline=False), lambda: None, TINY
    )


def test_every_case_runs_and_rows_are_what_was_learned() -> None:
    cases = run(bench_without_a_gpu())
    assert [case.unit for case in cases] == ["keys/s", "steps/s", "bytes/s"]
    assert all(min(case.ours) > 0 for case in cases)
    assert all(case.limit and case.limit > 0 for case in cases[:2])


def test_a_lost_gradient_prints_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "LR", 0.25)
    bench = bench_without_a_gpu()
    learn = bench.learn
    monkeypatch.setattr(bench, "learn", lambda table, batches, grads: learn(table, batches[1:], grads))
    with pytest.raises(SystemExit, match="nothing timed"):
        tiers.churn_case(bench, 1.0)
