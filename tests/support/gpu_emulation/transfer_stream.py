"""Stand-ins for a GPU: a transfer stream whose copies run at the first or last allowed moment, and a graph's replay."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springtide.app.training.device import TrainDevice
from springtide.app.training.step.cuda_graphs import GraphOutput


@dataclass
class Event:
    """The end of a copy, or of the work submitted so far; pending work runs when the event is waited for."""

    work: Callable[[], object] | None = None

    def complete(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()


class EmulatedTransferStream:
    """Host memory at both ends. `run_inline`: copies run when they are submitted, else when they are waited for."""

    def __init__(self, *, run_inline: bool) -> None:
        self.run_inline, self.in_side_stream = run_inline, False
        self.num_copies = self.num_allocated = self.num_side_streams = 0
        self.fetches: list[str] = []  # "submitted" and "awaited", in their order

    def allocate_pinned(self, num_bytes: int) -> Tensor:
        self.num_allocated += 1
        return torch.full((num_bytes,), 0xAB, dtype=torch.uint8)

    allocate_on_device = allocate_pinned

    def record_event(self) -> Event:
        return Event()

    def copy_async(self, host: Tensor, device: Tensor, after: Event) -> Event:
        assert after.work is None
        self.num_copies += 1
        event = Event(lambda: device.copy_(host))
        if self.run_inline:
            event.complete()
        return event

    def device_wait(self, event: Event) -> None:
        event.complete()

    host_wait = device_wait

    @contextmanager
    def side_stream(self, after: Event) -> Iterator[None]:
        assert after.work is None
        assert not self.in_side_stream
        self.num_side_streams += 1
        self.in_side_stream = True
        yield
        self.in_side_stream = False

    def fetch_async(self, numbers: Tensor) -> Callable[[], Any]:
        copied = numbers.clone()
        self.fetches.append("submitted")

        def wait() -> np.ndarray:
            self.fetches.append("awaited")
            return copied.numpy()

        return wait


def replay_without_graph(work: Callable[[], GraphOutput], warmup_runs: int) -> tuple[GraphOutput, Callable[[], None]]:
    """Emulate a CUDA graph: each replay runs the same work again and writes into the tensors of the first run."""
    for _ in range(warmup_runs):
        work()
    captured = work()
    outcome, grads = captured

    def replay() -> None:
        again = work()
        for to, tensor in zip([*outcome, *grads], [*again.outcome, *again.grads], strict=True):
            if to is not None and tensor is not None:
                to.copy_(tensor)

    return captured, replay


def emulated_device(*, run_inline: bool = False, captures: bool = False) -> TrainDevice:
    """A TrainDevice on the host whose copies and graphs are emulated."""
    stream = EmulatedTransferStream(run_inline=run_inline)
    return TrainDevice(torch.device("cpu"), stream, replay_without_graph if captures else None)
