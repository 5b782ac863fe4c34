"""Two ranks with a GPU each learn, over NCCL, what one process learns on the CPU from all their batches."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from springtide import DynamicEmbedding
from tests.embeddings.sharding import two_gpus, two_ranks
from tests.support.processes import IMPORT_PATH

ROOT = Path(__file__).parents[3]


def results_of(folder: Path, device: str) -> list[dict]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = [IMPORT_PATH, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"}
    command += [str(Path(two_gpus.__file__)), str(folder), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.gpu
def test_two_gpus_learn_what_one_process_learns(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"torch sees {torch.cuda.device_count()} NVIDIA GPUs, and two are needed")
    check(results_of(tmp_path, "cuda"))


def check(results: list[dict]) -> None:
    alone = DynamicEmbedding(two_ranks.DIM, 4096, **two_ranks.SETTINGS)
    for parts in two_ranks.batches():
        two_ranks.learn(alone, torch.cat(parts), 1)
    rows = {}
    for result in results:
        for number, vector, count, seen in zip(*result["rows"].values(), strict=True):
            assert number not in rows, "two ranks have a row of this id"
            rows[number] = (vector, count, seen)
    table = alone.export()
    assert sorted(rows) == table["ids"].to_pylist()
    for number, vector, count, seen in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        np.testing.assert_allclose(rows[number][0], vector, rtol=1e-4, atol=1e-5)
        assert rows[number][1:] == (count, seen)
    vectors, status = alone.lookup(torch.arange(-20, 20))
    for result in results:
        assert torch.equal(result["found"][1], status)
        torch.testing.assert_close(result["found"][0], vectors, rtol=1e-4, atol=1e-5, equal_nan=True)
