"""Two ranks with a GPU each learn, over NCCL, what one process learns on the CPU from all their batches."""

from pathlib import Path

import pytest
import torch

from tests.embeddings.sharding import two_gpus
from tests.embeddings.sharding.test_sharded_embedding import assert_same_rows, learned_alone, run


@pytest.mark.gpu
def test_two_gpus_learn_what_one_process_learns(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"torch sees {torch.cuda.device_count()} NVIDIA GPUs, and two are needed")
    results, alone = run(two_gpus.__file__, tmp_path, "cuda"), learned_alone()
    assert_same_rows(results, alone, rtol=1e-4, atol=1e-5)
    vectors, status = alone.lookup(torch.arange(-20, 20))
    for result in results:
        assert torch.equal(result["found"][1], status)
        torch.testing.assert_close(result["found"][0], vectors, rtol=1e-4, atol=1e-5, equal_nan=True)
