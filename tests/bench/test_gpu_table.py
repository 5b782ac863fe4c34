"""The GPU's benchmark runs from end to end where there is no GPU; what it measures there is nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.bench.gpu_table import Bench, Size, run
from tests.kernels.cuda_twins import device_of
from tests.kernels.simt import SimtDevice

TINY = Size(num_slots=256, num_keys=64, num_rows=64, step_dim=6, repeats=1, copy_bytes=1 << 12)


class NoClock:
    """Does the work, and takes a second for it."""

    def seconds(self, work: Callable[[Any], object], batches: Callable[[], Any], repeats: int) -> list[float]:
        for _ in range(repeats + 1):
            work(batches())
        return [1.0] * repeats


def test_every_case_of_the_gpus_benchmark_runs() -> None:
    cases = run(Bench(device_of("host"), NoClock(), TINY), (6,), (0.5, 1.0))
    assert len(cases) == 3 + 4 + 2
    assert all(case.limit and case.limit > 0 for case in cases)


def test_a_wrong_answer_prints_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(device_of("host"), NoClock(), TINY)
    bench.exact.find = lambda store, *keys: bench.device.put(keys[1] * 0)  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match="nothing timed"):
        run(bench, (6,), (1.0,))


def test_without_a_gpu_the_benchmark_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tests.bench.gpu_table as gpu_table

    def none_here() -> SimtDevice:
        raise ValueError("the device 'cuda' needs an NVIDIA GPU")

    monkeypatch.setattr(gpu_table, "CupyDevice", none_here)
    monkeypatch.setattr("sys.argv", ["gpu_table"])
    with pytest.raises(SystemExit, match=r"gpu\.table: .* needs an NVIDIA GPU"):
        gpu_table.main()
