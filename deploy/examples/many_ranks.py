"""A torch loop of your own on several processes: torchrun --nproc-per-node 2 deploy/examples/many_ranks.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from springtide import DynamicEmbedding


def main(num_steps: int = 30, batch_size: int = 256) -> None:
    torch.manual_seed(0)
    users = DynamicEmbedding(
        16,
        "16MiB",  # of each rank
        optimizer={"name": "adagrad", "lr": 0.1},
        process_group=dist.group.WORLD,
        forward_precision="bfloat16",
        backward_precision="int8",
    )
    head = DistributedDataParallel(nn.Linear(16, 1))  # the rows are no parameters: this is for the rest of the model
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())  # a batch of its own for each rank
    losses = []
    for _ in range(num_steps):
        ids = torch.randint(500, (batch_size,))
        loss = binary_cross_entropy_with_logits(head(users(ids))[:, 0], (ids % 2).float())
        optimizer.zero_grad()
        loss.backward()  # rows are updated where they are, by the mean of all ranks' gradients
        optimizer.step()
        losses.append(loss.item())
    print(f"rank {dist.get_rank()}: {len(users)} rows here, loss {losses[0]:.2f} -> {losses[-1]:.2f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")  # "nccl" between GPUs
    main()
    dist.barrier()
    # once nothing refers to the group any more: Gloo's threads must end before Python does
    dist.destroy_process_group()
