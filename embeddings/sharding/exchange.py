"""Exchange between the ranks of a process group: rows for each rank, rows of all ranks, sums, and failures."""

# N rows sent, M rows received, B bytes of a row, R ranks, T tables
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from springtide.embeddings.errors import OtherSpillError, ShardError, SpillError

FAILED, MAY_REPEAT, DONE = range(3)  # how a call ended


class Exchange:
    """The collectives of a process group. Every rank makes the same calls in the same order, also with nothing to send.

    A rank that ended leaves the others in a call, until the group's timeout ends it with an error of torch. Tensors
    travel between the devices where they are; numbers that the host needs travel from host to host, if the group can,
    so that they do not wait for the device.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: str = "cpu", *, with_itself: bool = False) -> None:
        """group: None: all ranks. device: where the tensors will be, "cpu" or "cuda".

        `with_itself`: a single rank sends everything to itself, instead of nothing: for tests and benchmarks.
        ValueError if the group cannot connect such devices.
        """
        self.group = group
        self.num_ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.is_alone = self.num_ranks == 1 and not with_itself  # nothing is sent
        self.numbers_device = "cpu" if self.is_alone else numbers_device_of(dist.get_backend_config(group), device)
        self.bytes_sent: Counter[str] = Counter()  # to other ranks, by kind

    def counts(self, send_RT: Tensor) -> list[list[int]]:
        """Tell each rank how many rows of each table it will get; return how many each will send here, int64 (R, T)."""
        counts_RT = send_RT = send_RT.to(self.numbers_device)
        if not self.is_alone:
            counts_RT = torch.empty_like(send_RT)
            self._all_to_all(counts_RT, send_RT, None, None)
            self.bytes_sent["counts"] += 8 * send_RT.shape[1] * (self.num_ranks - 1)
        counts: list[list[int]] = counts_RT.tolist()
        return counts

    def rows(self, kind: str, bytes_NB: Tensor, send_R: Sequence[int], receive_R: Sequence[int]) -> Tensor:
        """Send rows, those for rank 0 first, then those for rank 1, ...; return those received, rank 0's first.

        bytes_NB: uint8. Returns uint8 (M, B).
        """
        if self.is_alone:
            return bytes_NB
        received_MB = bytes_NB.new_empty(sum(receive_R), bytes_NB.shape[1])
        self._all_to_all(received_MB, bytes_NB.contiguous(), receive_R, send_R)
        self.bytes_sent[kind] += (len(bytes_NB) - send_R[self.rank]) * bytes_NB.shape[1]
        return received_MB

    def all_gather_numbers(self, own_N: Sequence[int]) -> list[list[int]]:
        """Return every rank's numbers, int64, rank 0's first. All ranks give equally many."""
        if self.is_alone:
            return [list(map(int, own_N))]
        own = torch.tensor(list(own_N), dtype=torch.int64, device=self.numbers_device)
        self.bytes_sent["numbers"] += 8 * len(own_N) * (self.num_ranks - 1)
        return [part.tolist() for part in self._all_gather(own)]

    def all_gather(self, kind: str, rows_NX: Tensor, num_rows_R: Sequence[int]) -> Tensor:
        """Return the rows of all ranks, rank 0's first; `num_rows_R`: how many each has."""
        if self.is_alone:
            return rows_NX
        own = rows_NX.new_zeros(max(num_rows_R), *rows_NX.shape[1:])
        own[: len(rows_NX)] = rows_NX
        self.bytes_sent[kind] += own.nbytes * (self.num_ranks - 1)
        return torch.cat([part[:number] for part, number in zip(self._all_gather(own), num_rows_R, strict=True)])

    def all_reduce(self, kind: str, numbers_N: Tensor) -> None:
        """Replace numbers by their sums over all ranks, which are the same bit by bit on every rank."""
        if not self.is_alone and numbers_N.numel():
            self._all_reduce(numbers_N, dist.ReduceOp.SUM)
            # in a ring: all but one of R parts, twice
            self.bytes_sent[kind] += 2 * numbers_N.nbytes * (self.num_ranks - 1) // self.num_ranks

    def all_true(self, here: bool) -> bool:
        """Return whether it is true on every rank."""
        return self._smallest(int(here)) == 1

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """If the body fails on one rank, its error is raised there, and a ShardError on the others: none waits.

        If it is a SpillError, after which all may repeat the call, the others get an OtherSpillError.
        """
        try:
            yield
        except Exception as error:
            self._smallest(MAY_REPEAT if isinstance(error, SpillError) else FAILED)
            raise
        worst = self._smallest(DONE)
        if worst == FAILED:
            raise ShardError("another rank failed in this call: see its error")
        if worst == MAY_REPEAT:
            raise OtherSpillError("the spill of another rank failed: see its error")

    def _smallest(self, number: int) -> int:
        if self.is_alone:
            return number
        numbers_1 = torch.tensor([number], dtype=torch.int64, device=self.numbers_device)
        self._all_reduce(numbers_1, dist.ReduceOp.MIN)
        return int(numbers_1[0])

    # what a back-end does

    def _all_to_all(
        self, received: Tensor, sent: Tensor, receive_R: Sequence[int] | None, send_R: Sequence[int] | None
    ) -> None:
        """Fill `received` with every rank's part for this one; no numbers: equal parts."""
        receive_sizes, send_sizes = (None if sizes is None else list(sizes) for sizes in (receive_R, send_R))
        dist.all_to_all_single(received, sent, receive_sizes, send_sizes, group=self.group)

    def _all_gather(self, own: Tensor) -> list[Tensor]:
        """Return every rank's tensor; all have the same shape."""
        parts = [torch.empty_like(own) for _ in range(self.num_ranks)]
        dist.all_gather(parts, own.contiguous(), group=self.group)
        return parts

    def _all_reduce(self, numbers: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        """Replace numbers by those of all ranks together."""
        dist.all_reduce(numbers, operation, group=self.group)


class LocalExchange(Exchange):
    """The exchange of a process that is alone: it sends nothing, and is its own answer."""

    def __init__(self) -> None:
        self.group, self.num_ranks, self.rank, self.is_alone = None, 1, 0, True
        self.numbers_device, self.bytes_sent = "cpu", Counter()


def exchange_of(group: dist.ProcessGroup | None, device: str) -> Exchange | None:
    """None if a rank has nothing to exchange. ValueError if the group cannot connect such devices."""
    exchange = None if group is None else Exchange(group, device)
    return None if exchange is None or exchange.is_alone else exchange


def numbers_device_of(backends: str, device: str) -> str:
    """Return where a group's numbers for the host travel: "cpu" if it can; `backends`: such as "cpu:gloo,cuda:nccl".

    ValueError if tensors on this device cannot travel.
    """
    backend_of = dict(pair.split(":") for pair in backends.split(","))
    name = backend_of.get(device)
    if device == "cuda" and name != "nccl":
        raise ValueError(
            f"the ranks' GPUs cannot exchange rows by {name or backends}: make the process group with "
            'init_process_group("cpu:gloo,cuda:nccl")'
        )
    if name is None:
        raise ValueError(
            f"rows on the {device} cannot travel by {backends}: make the process group with "
            'init_process_group("cpu:gloo,cuda:nccl"), or keep the rows on device="cuda"'
        )
    return "cpu" if "cpu" in backend_of else device
