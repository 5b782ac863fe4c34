"""Stand-ins for a GPU: a lane whose copies happen at the first or at the last moment allowed, and a graph's replay."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.training.device.device import TrainDevice
from app.training.step.cuda_graphs import GraphOutput


@dataclass
class Mark:
    """The end of a copy, or of the work so far; what is not done yet is done by whoever waits."""

    work: Callable[[], object] | None = None

    def pass_by(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()


class LateLane:
    """Host memory at both ends. `run_inline`: copies happen when they are asked for, else when waited for."""

    def __init__(self, *, run_inline: bool) -> None:
        self.run_inline, self.is_beside = run_inline, False
        self.num_copies = self.num_allocated = self.num_ahead = 0
        self.fetched: list[str] = []  # "asked" and "waited", in their order

    def pinned(self, num_bytes: int) -> Tensor:
        self.num_allocated += 1
        return torch.full((num_bytes,), 0xAB, dtype=torch.uint8)

    there = pinned

    def mark(self) -> Mark:
        return Mark()

    def carry(self, here: Tensor, there: Tensor, after: Mark) -> Mark:
        assert after.work is None
        self.num_copies += 1
        mark = Mark(lambda: there.copy_(here))
        if self.run_inline:
            mark.pass_by()
        return mark

    def wait_there(self, mark: Mark) -> None:
        mark.pass_by()

    wait_here = wait_there

    @contextmanager
    def beside(self, mark: Mark) -> Iterator[None]:
        assert mark.work is None
        assert not self.is_beside
        self.num_ahead += 1
        self.is_beside = True
        yield
        self.is_beside = False

    def fetch(self, numbers: Tensor) -> Callable[[], Any]:
        copied = numbers.clone()
        self.fetched.append("asked")

        def wait() -> np.ndarray:
            self.fetched.append("waited")
            return copied.numpy()

        return wait


def play_again(work: Callable[[], GraphOutput], warm_ups: int) -> tuple[GraphOutput, Callable[[], None]]:
    """A graph's promise without one: each play does the same work anew and writes to the tensors of the first."""
    for _ in range(warm_ups):
        work()
    result = work()
    outcome, grads = result

    def play() -> None:
        again = work()
        for to, tensor in zip([*outcome, *grads], [*again.outcome, *again.grads], strict=True):
            if to is not None and tensor is not None:
                to.copy_(tensor)

    return result, play


def device(*, run_inline: bool = False, captures: bool = False) -> TrainDevice:
    """One to be trained on."""
    return TrainDevice(torch.device("cpu"), LateLane(run_inline=run_inline), play_again if captures else None)
