"""Captures work as a CUDA graph, which one launch replays."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

Output = TypeVar("Output")


class GraphCapture(Protocol):
    """Turns work into something that can be replayed."""

    def __call__(self, work: Callable[[], Output], warmup_runs: int) -> tuple[Output, Callable[[], None]]:
        """Run the work a few times, then capture it. Returns its output, which every replay overwrites, and the replay.

        RuntimeError if the work cannot be captured.
        """
        ...


def capture_cuda_graph(work: Callable[[], Output], warmup_runs: int) -> tuple[Output, Callable[[], None]]:
    """A GraphCapture whose graph has memory of its own, on torch's current GPU."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup_runs):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
        output = work()
    return output, graph.replay
