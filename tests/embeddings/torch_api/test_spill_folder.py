"""The spill folder of a DynamicEmbedding: locked, deleted in the end, and never another's."""

import gc
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from springtide import DynamicEmbedding
from springtide.embeddings.errors import SpillError
from tests.support.processes import IMPORT_PATH

ROOT = Path(__file__).parents[3]


def train(emb: DynamicEmbedding, ids: torch.Tensor) -> None:
    emb(ids).sum().backward()


def test_without_a_spill_an_evicted_row_is_lost() -> None:
    emb = DynamicEmbedding(4, 16)
    for start in range(0, 64, 16):
        train(emb, torch.arange(start, start + 16))
    status = emb.lookup(torch.arange(64))[1]
    assert set(status.tolist()) == {0, 3}
    assert emb.counters()["lost"] == 48


@pytest.mark.parametrize("eviction", ["lru", "lfu", "custom"])
@pytest.mark.parametrize("name", ["rowwise-adagrad", "adam", "sgd"])
def test_with_a_spill_a_small_capacity_does_not_change_results(name: str, eviction: str, tmp_path: Path) -> None:
    settings = {"optimizer": {"name": name, "lr": 0.1}, "eviction": eviction, "admission": {"min_count": 2}}
    large = DynamicEmbedding(8, 4096, **settings)
    small = DynamicEmbedding(8, 32, spill=tmp_path / "spill", **settings)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(0, 500, (10, 20), generator=generator)
        weight = torch.randn(10, 20, 8, generator=generator)
        scores = weight[:, :, 0] if eviction == "custom" else None
        for emb in (large, small):
            (emb(ids, scores=scores) * weight).sum().backward()
    one, other = (emb.lookup(torch.arange(500)) for emb in (large, small))
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[0].nan_to_num(7), other[0].nan_to_num(7))
    assert small.counters()["recalled_from_spill"] > 0
    small.table.check_integrity()
    small.close()
    assert not (tmp_path / "spill").exists()


def test_a_closed_object_raises(tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    rows = emb(torch.arange(3))
    emb.close()
    emb.close()
    for call in (rows.sum().backward, lambda: emb(torch.arange(3)), emb.export, emb.eval().state_dict):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_folder_with_other_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter 1")
    with pytest.raises(SpillError, match=r"thesis\.txt"):
        DynamicEmbedding(8, 32, spill=tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("chapter 1")
    for path in (tmp_path / "file", tmp_path / "file" / "spill"):
        with pytest.raises(SpillError, match="file"):
            DynamicEmbedding(8, 32, spill=path)
    assert (tmp_path / "file").read_text() == "chapter 1"


def test_a_read_only_folder_is_refused() -> None:
    with pytest.raises(SpillError, match="/proc/springtide"):
        DynamicEmbedding(8, 32, spill="/proc/springtide")


def test_a_folder_in_use_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    train(emb, torch.arange(100))
    with pytest.raises(SpillError, match="in use"):
        DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    assert (emb.lookup(torch.arange(100))[1] == 0).all()
    emb.close()
    again = DynamicEmbedding(4, 16, spill=str(tmp_path / "spill"))
    train(again, torch.arange(50))
    assert again.lookup(torch.arange(100))[1].tolist() == [0] * 50 + [1] * 50
    again.close()


def test_a_dropped_object_deletes_its_folder(tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    train(emb, torch.arange(100))
    assert (tmp_path / "spill").exists()
    del emb
    gc.collect()
    assert not (tmp_path / "spill").exists()


def test_a_process_deletes_its_folder_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import os, sys, torch\n"
        "from springtide import DynamicEmbedding\n"
        "emb = DynamicEmbedding(4, 16, spill=sys.argv[1])\n"
        "emb(torch.arange(100)).sum().backward()\n"
        "emb.export()\n"
        "if sys.argv[2] == 'kill': os.kill(os.getpid(), 9)\n"
    )
    for end, exit_code in (("end", 0), ("kill", -9)):
        command = [sys.executable, "-c", code, str(tmp_path / "spill"), end]
        path = IMPORT_PATH
        done = subprocess.run(command, env={"PYTHONPATH": path, "PATH": ""}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (exit_code, "")
        assert (tmp_path / "spill").exists() == (end == "kill")
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    assert len(list((tmp_path / "spill").iterdir())) == 2  # its lock and its rows, none of the killed process
    assert emb.lookup(torch.arange(10))[1].tolist() == [1] * 10
    emb.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_deleted_in_use_gives_no_wrong_row(killed: bool, tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, init_scale=0, optimizer={"name": "sgd", "lr": 1.0}, spill=tmp_path / "spill")
    train(emb, torch.arange(1000))
    resident = emb.table.parts.memory.ops.keys_of(emb.table.parts.memory.store, emb.table.parts.memory.occupied())[1]
    worker = emb.table.parts.spill._worker  # type: ignore[attr-defined]
    worker.drain()
    shutil.rmtree(tmp_path / "spill")
    if killed:  # the process, which can still read the files that it has open
        worker._process.kill()
        worker.patience_seconds = 0.3  # for calls that will fail
    refused = 0
    for start in range(0, 1000, 500):
        try:
            rows, status = emb.lookup(torch.arange(start, start + 500))
            assert (rows == -1).all()
            assert (status == 0).all()
            train(emb, torch.arange(start, start + 500))
        except SpillError:
            refused += 1
    assert (refused > 0) == killed
    if killed:
        with pytest.raises(SpillError):
            emb.state_dict()
        assert (emb.lookup(torch.from_numpy(resident))[0] == -1).all()
    emb.table.check_integrity()
    assert emb.table.parts.memory.num_pinned == 0
    emb.close()
    assert not (tmp_path / "spill").exists()
