"""DynamicEmbedding among threads and processes."""

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from springtide import DynamicEmbedding
from springtide.embeddings.errors import OwnershipError


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
    emb.table.parts.spill._worker.drain()  # type: ignore[attr-defined]


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
