"""What each rank of the tests of sharding does: run as `torchrun --nproc-per-node 2 two_ranks.py FOLDER`."""

import gc
import io
import os
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from springtide import DynamicEmbedding

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "many_ranks.py"
DIM, STEPS, IDS = 4, 6, 60
SETTINGS: dict[str, Any] = {"optimizer": {"name": "adagrad", "lr": 0.1}, "seed": 3, "clock": lambda: 1000.0}


def batches(num_parts: int = 4) -> list[list[torch.Tensor]]:
    """Of each step the parts of a batch; the sizes differ, one part is empty, one id is in all of them, often."""
    generator = np.random.default_rng(5)
    steps = []
    for step in range(STEPS):
        parts = [generator.integers(-IDS, IDS, size) for size in (7, 12, 0, 5)[:num_parts]]
        steps.append([torch.from_numpy(np.append(part, [step % 3] * 3) if len(part) else part) for part in parts])
    return steps


def learn(embedding: DynamicEmbedding, ids: torch.Tensor, num_ranks: int) -> None:
    """A step whose gradients depend on the rows; the mean over ranks is taken of gradients, so that sums agree."""
    rows = embedding(ids)
    weights = (ids % 7).to(torch.float32).reshape(-1, 1)
    (num_ranks * ((rows - weights) ** 2).sum()).backward()


def main(folder: Path) -> None:
    results: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    results["example"] = printed.getvalue()
    # in a store of its own: one group after the other would find the addresses of the first in torchrun's
    world = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", **world)
    results |= results_of_rank(folder)
    torch.save(results, folder / f"rank-{dist.get_rank()}.pt")
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


def results_of_rank(folder: Path) -> dict[str, Any]:
    """What this rank found; nothing refers to the process group afterwards."""
    results: dict[str, Any] = {}
    group, rank, num_ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    assert group is not None
    embedding = DynamicEmbedding(DIM, 4096, process_group=group, spill=folder / "spill", **SETTINGS)
    mine = [torch.cat([part for number, part in enumerate(parts) if number % num_ranks == rank]) for parts in batches()]
    for step, ids in enumerate(mine):
        learn(embedding, ids, num_ranks)
        if step + 1 < len(mine) and step % 2:
            # of the next step; once one rank needs others after all
            embedding.prefetch(mine[step + 1] if (step, rank) != (3, 1) else mine[step])
    table = embedding.export()
    results["rows"] = {name: table[name].to_pylist() for name in table.column_names}
    results["state"] = embedding.state_dict()
    results["bytes"] = dict(embedding.shards.exchange.bytes_sent) if embedding.shards is not None else {}
    asked = torch.arange(-2 * IDS, 2 * IDS)[rank::num_ranks]
    results["asked"], results["found"] = asked, embedding.lookup(asked)
    embedding.eval()
    results["read"] = embedding(asked.reshape(-1, 2))
    results["pooled"] = embedding.pool(asked, torch.tensor([0, 0, 5]), mode="max")
    embedding.forget(asked[:3] if rank == 0 else asked[:0])
    results["after_forget"] = embedding.lookup(asked[:3])[1]
    other = DynamicEmbedding(DIM, 4096, process_group=group, **SETTINGS)
    other.import_arrow(table)  # the rows of this rank
    results["imported"] = len(other)
    for precision in ("int8", "bfloat16"):
        narrow = DynamicEmbedding(
            DIM, 4096, process_group=group, forward_precision=precision, backward_precision=precision, **SETTINGS
        )
        for parts in batches():
            learn(narrow, parts[0] if rank == 0 else parts[1], num_ranks)
        assert narrow.shards is not None
        results[f"{precision}_bytes"] = dict(narrow.shards.exchange.bytes_sent)
        results[precision] = narrow.lookup(torch.arange(-IDS, IDS))
    embedding.train()
    embedding.prefetch(mine[0])
    embedding.load_state_dict(results["state"])  # what was prefetched is of another table
    learn(embedding, mine[0], num_ranks)
    try:
        DynamicEmbedding(DIM, 4096, process_group=group, eviction="custom")
    except ValueError as error:
        results["custom"] = str(error)
    failing = DynamicEmbedding(DIM, 4096, process_group=group, **SETTINGS)
    if rank == 0:
        failing.table.lookup_unique = _fail  # type: ignore[method-assign, assignment]
    try:
        failing(torch.arange(10))
    except Exception as error:
        results["error"] = f"{type(error).__name__}: {error}"
    return results


def _fail(*_: Any, **__: Any) -> None:
    raise OSError("no space left on device")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
