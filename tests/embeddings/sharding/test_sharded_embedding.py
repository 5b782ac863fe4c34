"""A DynamicEmbedding on several ranks learns what one process learns from all their batches: processes, Gloo."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from springtide import DynamicEmbedding
from tests.embeddings.sharding import two_ranks as ranks
from tests.support.processes import IMPORT_PATH

Results = list[dict[str, Any]]
ROOT = Path(__file__).parents[3]


def run(script: str, folder: Path, *arguments: str) -> Results:
    """Return what two ranks that run this script found."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = [IMPORT_PATH, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"}
    command += [script, str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(ranks.__file__, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone() -> DynamicEmbedding:
    return learned_alone()


def learned_alone() -> DynamicEmbedding:
    """Return that of one process that learned the batches of all ranks."""
    embedding = DynamicEmbedding(ranks.DIM, 4096, **ranks.SETTINGS)
    for parts in ranks.batches():
        ranks.learn(embedding, torch.cat(parts), 1)
    return embedding


def rows_of(results: Results) -> dict[int, tuple[list[float], int, int]]:
    rows = {}
    for result in results:
        table = result["rows"]
        for number, vector, count, seen in zip(*(table[name] for name in table), strict=True):
            assert number not in rows, "two ranks have a row of this id"
            rows[number] = (vector, count, seen)
    return rows


def assert_same_rows(results: Results, alone: DynamicEmbedding, rtol: float, atol: float) -> None:
    table, rows = alone.export(), rows_of(results)
    assert sorted(rows) == table["ids"].to_pylist()
    for number, vector, count, seen in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        np.testing.assert_allclose(rows[number][0], vector, rtol=rtol, atol=atol)
        assert rows[number][1:] == (count, seen)


def test_the_rows_of_all_ranks_are_those_of_one_process(two: Results, alone: DynamicEmbedding) -> None:
    assert_same_rows(two, alone, rtol=1e-5, atol=1e-6)
    assert min(len(result["rows"]["ids"]) for result in two) > 10


def test_any_rank_finds_the_rows_of_all(two: Results, alone: DynamicEmbedding) -> None:
    for result in two:
        (vectors, status), (known, known_status) = result["found"], alone.lookup(result["asked"])
        assert torch.equal(status, known_status)
        assert set(status.tolist()) == {0, 1}
        torch.testing.assert_close(vectors, known, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_inference_reads_rows_of_all_ranks_and_creates_none(two: Results, alone: DynamicEmbedding) -> None:
    alone.eval()
    for result in two:
        torch.testing.assert_close(result["read"], alone(result["asked"].reshape(-1, 2)), rtol=1e-5, atol=1e-6)
        pooled = alone.pool(result["asked"], torch.tensor([0, 0, 5]), mode="max")
        torch.testing.assert_close(result["pooled"], pooled, rtol=1e-5, atol=1e-6)
    alone.train()


def test_a_forgotten_id_is_gone_on_every_rank(two: Results) -> None:
    assert not (two[0]["after_forget"] == 0).any()


def test_each_rank_imports_its_own_rows(two: Results) -> None:
    assert [result["imported"] for result in two] == [len(result["rows"]["ids"]) for result in two]


@pytest.mark.parametrize(("precision", "tolerance", "num_bytes"), [("int8", 0.03, 4 + 4), ("bfloat16", 0.02, 8)])
def test_narrow_rows_learn_nearly_the_same_and_are_narrow(
    two: Results, precision: str, tolerance: float, num_bytes: int
) -> None:
    embedding = DynamicEmbedding(ranks.DIM, 4096, **ranks.SETTINGS)
    for parts in ranks.batches():
        ranks.learn(embedding, torch.cat(parts[:2]), 1)
    known, _ = embedding.lookup(torch.arange(-ranks.IDS, ranks.IDS))
    for result in two:
        rows, _ = result[precision]
        torch.testing.assert_close(rows, known, rtol=tolerance, atol=tolerance, equal_nan=True)
        sent = result[f"{precision}_bytes"]
        num_keys = sent["keys"] // 12
        assert sent["keys"] == 12 * num_keys
        assert sent["gradients"] == num_bytes * num_keys


def test_the_error_of_one_rank_ends_the_call_on_all(two: Results) -> None:
    assert two[0]["error"] == "OSError: no space left on device"
    assert two[1]["error"] == "ShardError: another rank failed in this call: see its error"


def test_a_state_goes_to_the_ranks_that_wrote_it_and_that_of_one_process_to_any(
    two: Results, alone: DynamicEmbedding
) -> None:
    with pytest.raises(ValueError, match=r"state of rank 1 of 2, and this is rank 0 of 1.*export.*import"):
        alone.load_state_dict(two[1]["state"])


def test_bad_settings_are_named(two: Results) -> None:
    assert two[0]["custom"] == 'eviction = "custom" does not work with a process_group: give a function of rows'
    with pytest.raises(ValueError, match="rows can travel as float32, bfloat16, int8, not as 'int4'"):
        DynamicEmbedding(4, 100, forward_precision="int4")


def test_the_example_learns_on_all_ranks(two: Results) -> None:
    found = re.findall(r"rank (\d): (\d+) rows here, loss (0\.\d+) -> (0\.\d+)", two[0]["example"] + two[1]["example"])
    assert [rank for rank, *_ in found] == ["0", "1"]
    assert sum(int(num_rows) for _, num_rows, *_ in found) == 500
    assert all(float(last) < float(first) - 0.05 for *_, first, last in found)
