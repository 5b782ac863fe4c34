"""Sends each rank its part of some bytes, and receives the parts that the others have for this one."""

# N rows sent, M rows received, B bytes of a row, R ranks
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from embeddings.errors import ShardError


class Exchange:
    """The all-to-all of a process group. Every rank makes the same calls in the same order, also with nothing to send.

    A rank that ended leaves the others in a call, until the group's timeout ends it with an error of torch.
    """

    def __init__(self, group: dist.ProcessGroup, device: str) -> None:
        """device: where the bytes are, "cpu" or "cuda"."""
        self.group, self.device = group, device
        self.num_ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.bytes_sent: Counter[str] = Counter()  # to other ranks, by kind

    def counts(self, send_R: Tensor) -> list[int]:
        """Tell each rank how many rows it will get; return how many each will send here. send_R: int64."""
        if self.num_ranks == 1:
            return [int(send_R[0])]
        received_R = torch.empty_like(send_R)
        dist.all_to_all_single(received_R, send_R, group=self.group)
        self.bytes_sent["counts"] += 8 * (self.num_ranks - 1)
        return received_R.tolist()

    def rows(self, kind: str, bytes_NB: Tensor, send_R: Sequence[int], receive_R: Sequence[int]) -> Tensor:
        """Send rows, those for rank 0 first, then those for rank 1, ...; return those received, rank 0's first.

        bytes_NB: uint8. Returns uint8 (M, B).
        """
        if self.num_ranks == 1:
            return bytes_NB
        received_MB = bytes_NB.new_empty(sum(receive_R), bytes_NB.shape[1])
        dist.all_to_all_single(received_MB, bytes_NB.contiguous(), list(receive_R), list(send_R), group=self.group)
        self.bytes_sent[kind] += (len(bytes_NB) - send_R[self.rank]) * bytes_NB.shape[1]
        return received_MB

    def all_true(self, here: bool) -> bool:
        """Return whether it is true on every rank."""
        return self._smallest(int(here)) == 1

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """If the body fails on one rank, its error is raised there, and a ShardError on the others: none waits."""
        try:
            yield
        except Exception:
            self._smallest(0)
            raise
        if self._smallest(1) == 0:
            raise ShardError("another rank failed in this call: see its error")

    def _smallest(self, number: int) -> int:
        if self.num_ranks == 1:
            return number
        numbers_1 = torch.tensor([number], dtype=torch.int64, device=self.device)
        dist.all_reduce(numbers_1, dist.ReduceOp.MIN, group=self.group)
        return int(numbers_1[0])
