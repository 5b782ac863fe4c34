"""Ranks as threads of one process: quick, where a process for each would take seconds to begin."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from springtide.embeddings.sharding.exchange import Exchange

Result = TypeVar("Result")
SECONDS = 60.0


class ThreadExchange(Exchange):
    """An Exchange with the other threads."""

    def __init__(self, rank: int, num_ranks: int, barrier: threading.Barrier, places: list[Any]) -> None:
        self.rank, self.num_ranks, self.numbers_device = rank, num_ranks, "cpu"
        self.is_alone = num_ranks == 1
        self.bytes_sent = Counter()
        self._barrier, self._places = barrier, places

    def _all_to_all(
        self, received: Tensor, sent: Tensor, receive_R: Sequence[int] | None, send_R: Sequence[int] | None
    ) -> None:
        sizes = list(send_R) if send_R is not None else len(sent) // self.num_ranks
        parts = self._tell(torch.split(sent, sizes), lambda theirs: theirs[self.rank].clone())
        if receive_R is not None:
            assert [len(part) for part in parts] == list(receive_R)
        received.copy_(torch.cat(parts))

    def _all_gather(self, own: Tensor) -> list[Tensor]:
        tensors = self._tell(own, lambda tensor: tensor.clone())
        assert len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
        return tensors

    def _all_reduce(self, numbers: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        tensors = torch.stack(self._all_gather(numbers))
        numbers.copy_(tensors.amin(0) if operation == dist.ReduceOp.MIN else tensors.sum(0))

    def _tell(self, what: Any, copy: Callable[[Any], Tensor]) -> list[Tensor]:
        """Return copies of what every rank tells: it may write over it afterwards."""
        self._places[self.rank] = what
        self._barrier.wait(SECONDS)
        copies = [copy(told) for told in self._places]
        self._barrier.wait(SECONDS)
        return copies


def on_ranks(num_ranks: int, work: Callable[[ThreadExchange], Result]) -> list[Result]:
    """Return what `work` returns on each rank; an error of one ends the others' calls too."""
    barrier, places = threading.Barrier(num_ranks), [None] * num_ranks

    def run(rank: int) -> Result:
        try:
            return work(ThreadExchange(rank, num_ranks, barrier, places))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(run, rank) for rank in range(num_ranks)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]
