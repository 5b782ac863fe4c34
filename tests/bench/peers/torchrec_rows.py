"""Rows from TorchRec's row-wise sharded EmbeddingBagCollection, for train.ranks: one table a field, bags of one id."""

# N samples, C fields, D dimension
from collections.abc import Callable

import fbgemm_gpu  # noqa: F401  registers its operators
import torch
import torch.distributed as dist
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def torchrec_rows(num_fields: int, ids_a_field: int, dim: int, lr: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from ids (N, C), int64, below `ids_a_field` in each field, to rows (N, C, D)."""
    names = [f"f{number}" for number in range(num_fields)]
    tables = [
        EmbeddingBagConfig(name=f"t_{name}", embedding_dim=dim, num_embeddings=ids_a_field, feature_names=[name])
        for name in names
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": lr})
    world = dist.get_world_size()
    sharder = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        bags,
        {table.name: row_wise() for table in tables},
        sharder,
        local_size=world,
        world_size=world,
        device_type="cpu",
    )
    sharded = DistributedModelParallel(
        bags,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={"": plan}),
        sharders=[sharder],
    )

    def rows(ids_NC: torch.Tensor) -> torch.Tensor:
        num_samples = len(ids_NC)
        bags_of_one = KeyedJaggedTensor(
            keys=names,
            values=ids_NC.T.reshape(-1),
            lengths=torch.ones(num_samples * num_fields, dtype=torch.int64),
        )
        return sharded(bags_of_one).values().view(num_samples, num_fields, dim)

    return rows
