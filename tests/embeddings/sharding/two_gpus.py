"""What each rank of the test of two GPUs does: run as `torchrun --nproc-per-node 2 two_gpus.py FOLDER cuda`."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from springtide import DynamicEmbedding
from tests.embeddings.sharding.two_ranks import DIM, SETTINGS, batches, learn


def main(folder: Path, device: str) -> None:
    world = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device == "cuda" else None
    if gpu is not None:
        torch.cuda.set_device(gpu)
    backends = "gloo" if gpu is None else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backends, init_method=f"file://{folder / 'store'}", device_id=gpu, **world)
    group, rank, num_ranks = dist.group.WORLD, world["rank"], world["world_size"]
    embedding = DynamicEmbedding(DIM, 4096, process_group=group, device=device, spill=folder / "spill", **SETTINGS)
    for parts in batches():
        ids = torch.cat([part for number, part in enumerate(parts) if number % num_ranks == rank]).to(device)
        embedding.prefetch(ids)
        learn(embedding, ids, num_ranks)
    table = embedding.export()
    rows = {name: table[name].to_pylist() for name in table.column_names}
    found = [tensor.cpu() for tensor in embedding.lookup(torch.arange(-20, 20, device=device))]
    torch.save({"rows": rows, "found": found}, folder / f"rank-{rank}.pt")
    dist.barrier()
    del embedding
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
