"""DynamicEmbedding among threads and processes, and its spill folder."""

import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from springtide import DynamicEmbedding
from springtide.embeddings.errors import OwnershipError, SpillError
from tests.support.processes import IMPORT_PATH
from tests.torture.disk.spill_bytes import run


def test_readers_beside_a_trainer_never_see_half_written_rows(tmp_path: Path) -> None:
    # an update adds the same number to all elements of a row, so a half-written row has two different numbers
    emb = DynamicEmbedding(64, 64, init_scale=0, optimizer={"name": "sgd", "lr": 1.0}, spill=tmp_path / "spill")
    ids, done = torch.arange(300), threading.Event()
    torn: list[Any] = []
    rounds = [0, 0, 0]

    def read(number: int) -> None:
        try:
            while not done.is_set() or not rounds[number]:
                rows = emb.lookup(ids)[0] if number else _without_gradient(emb, ids)
                if not torch.equal(rows, rows[:, :1].expand_as(rows)) and not torch.isnan(rows).any():
                    torn.append(rows)
                rounds[number] += 1
        except BaseException as error:
            torn.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for reader in readers:
        reader.start()
    for step in range(40):
        emb(ids[step * 7 % 250 :][:50]).sum().backward()
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert min(rounds) > 0
    assert sum(emb.export()["count"].to_pylist()) == 2000
    emb.table.check_integrity()
    emb.close()


def _without_gradient(emb: DynamicEmbedding, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return emb(ids)


def test_several_threads_can_train() -> None:
    emb = DynamicEmbedding(4, 256, init_scale=0, optimizer={"name": "sgd", "lr": 1.0})

    def train() -> None:
        for _ in range(25):
            emb(torch.arange(100)).sum().backward()

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(emb.lookup(torch.arange(100))[0], torch.full((100, 4), -100.0))
    emb.table.check_integrity()


class Looked(Dataset[torch.Tensor]):
    """A dataset that looks up rows in its workers, which is refused."""

    def __init__(self, emb: DynamicEmbedding) -> None:
        self.emb = emb

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.emb(torch.tensor(index)).detach()


def settle(emb: DynamicEmbedding) -> None:
    """Wait until evicted rows are on disk, so that forks find the spill's process running."""
    emb.table.spill._worker.drain()  # type: ignore[attr-defined]


@pytest.mark.parametrize("spilled", [False, True])
def test_a_forked_worker_gets_an_error_that_names_the_owner(spilled: bool, tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill" if spilled else None)
    emb(torch.arange(100)).sum().backward()
    if spilled:
        settle(emb)
    before = emb.export()
    with pytest.raises(OwnershipError, match="workers return ids"):
        next(iter(DataLoader(Looked(emb), num_workers=1, multiprocessing_context="fork")))
    assert emb.export().equals(before)
    emb(torch.arange(100)).sum().backward()
    emb.close()


def test_a_fork_does_not_close_its_parents_spill(tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    emb(torch.arange(100)).sum().backward()
    settle(emb)
    emb.prefetch(torch.arange(50))
    rows = emb(torch.arange(3))
    before = emb.export()
    answers = multiprocessing.get_context("fork").SimpleQueue()

    def child() -> None:
        refused = 0
        ids = torch.arange(3)
        for call in (
            rows.sum().backward,
            emb.close,
            emb.export,
            emb.advance,
            lambda: emb.set_lr(1.0),
            lambda: emb(ids),
            lambda: emb.forget(ids),
            lambda: emb.prefetch(ids),
            lambda: emb.on_evict(print),
            lambda: emb.evict_if(lambda rows: rows.counts > 0),
        ):
            try:
                call()
            except OwnershipError:
                refused += 1
            except RuntimeError as error:  # torch's CUDA build itself refuses a backward pass in a fork
                refused += "fork" in str(error)
        answers.put(refused)
        globals()["emb"] = None

    fork = multiprocessing.get_context("fork").Process(target=child)
    fork.start()
    fork.join()
    assert (fork.exitcode, answers.get()) == (0, 10)
    answers.close()
    assert emb.export().equals(before)
    rows.sum().backward()
    emb.close()
    assert not (tmp_path / "spill").exists()


def test_a_fork_that_exits_leaves_the_spill_to_its_parent(tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    emb(torch.arange(100)).sum().backward()
    settle(emb)
    before = emb.export()
    process = os.fork()
    if process == 0:
        try:
            emb.table._release()  # as the garbage collector and the end of the interpreter do
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    assert emb.export().equals(before)
    emb.close()


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
    resident = emb.table.memory.ops.keys_of(emb.table.memory.store, emb.table.memory.occupied())[1]
    worker = emb.table.spill._worker  # type: ignore[attr-defined]
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
    assert emb.table.memory.num_pinned == 0
    emb.close()
    assert not (tmp_path / "spill").exists()


MIB = 1 << 20


def test_the_folder_keeps_spill_bytes_at_full_speed(tmp_path: Path) -> None:
    outcome = run(tmp_path, "8MiB", lambda number: number < 120, batch=1000)  # 11 MB of rows
    assert outcome.peak <= 1.25 * 8 * MIB
    assert outcome.counters["spilled"] > 100_000
    assert 0 < outcome.num_reported <= outcome.counters["created"] - outcome.num_rows
