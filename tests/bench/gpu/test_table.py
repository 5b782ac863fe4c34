"""The benchmark of the GPU's table runs from end to end without a GPU; its figures then mean nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from springtide.kernels.cuda.cupy_device import CupyDevice
from tests.bench.gpu import table
from tests.bench.gpu.table import Bench, Size, run
from tests.support.gpu_emulation.emulated_ops import device_of
from tests.support.gpu_emulation.fake_gpu import install

TINY = Size(
    dims=(6,),
    loads=(0.5, 1.0),
    num_slots=128,
    num_keys=64,
    num_rows=64,
    step_dim=6,
    repeats=1,
    copy_bytes=1 << 12,
)


class NoClock:
    """Does the work, and reports one second for each call."""

    def seconds(self, work: Callable[[Any], object], batches: Callable[[], Any], repeats: int) -> list[float]:
        for _ in range(repeats + 1):
            work(batches())
        return [1.0] * repeats


def test_every_case_runs_on_the_emulated_backend() -> None:
    cases = run(Bench(device_of("host"), NoClock(), TINY))
    assert len(cases) == 3 + 4 + 2
    assert all(case.limit and case.limit > 0 for case in cases)


def test_a_wrong_answer_prints_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(device_of("host"), NoClock(), TINY)
    bench.exact.find = lambda store, *keys: bench.device.put(keys[1] * 0)  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match="nothing timed"):
        run(bench)


def test_the_benchmark_runs_on_stand_ins_for_cupy_and_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Covers graphs, events, index_select and files, which otherwise run only on a machine with a GPU."""
    install(monkeypatch)
    monkeypatch.setattr(table, "QUICK", replace(TINY, dims=(), loads=()))
    monkeypatch.setattr(table, "SELECT_DIM", 6)
    monkeypatch.setattr(CupyDevice, "threads", 32)
    monkeypatch.setattr("sys.argv", ["gpu_table", "--quick", "--out", str(tmp_path / "gpu.json")])
    table.main()
    assert "index_select" in (tmp_path / "gpu.md").read_text()
