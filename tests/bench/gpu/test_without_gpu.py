"""Each benchmark of the GPU says what is missing where there is none."""

import pytest
import torch

from tests.bench.gpu import ranks, table, tiers, train

BENCHMARKS = {"gpu.ranks": ranks, "gpu.table": table, "gpu.tiers": tiers, "train.e2e on the GPU": train}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_says_what_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit, match=rf"{name}: .* needs (CuPy|an NVIDIA GPU)"):
        BENCHMARKS[name].main()
