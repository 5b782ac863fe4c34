"""A process group of this process alone, which sends everything to itself: over Gloo, or over NCCL on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from springtide.embeddings.sharding.exchange import Exchange


@contextmanager
def one_rank(device: str) -> Iterator[Exchange]:
    """device: where tensors travel, "cpu" or "cuda"."""
    names = {"device_id": torch.device("cuda", torch.cuda.current_device())} if device == "cuda" else {}
    backends = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backends, store=dist.HashStore(), rank=0, world_size=1, **names)
    try:
        yield Exchange(dist.group.WORLD, device, with_itself=True)
    finally:
        dist.destroy_process_group()
