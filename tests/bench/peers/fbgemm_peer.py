"""FBGEMM's table-batched embedding and TorchRec's managed collision module, on the CPU.

The embedding has no hash: it gets row numbers. Summed bags of one id are its fast path on the CPU, several times faster
backward than its unpooled mode.
"""

# C rows of the table, K keys of a call, D dimension
import os
from importlib.metadata import version

import fbgemm_gpu  # noqa: F401  registers its operators
import numpy as np
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    OptimType,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from serving import load, serve, timed
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import JaggedTensor

torch.set_num_threads(int(os.environ["PEER_THREADS"]))
OPTIMIZERS = {
    "sgd": OptimType.EXACT_SGD,
    "rowwise-adagrad": OptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": OptimType.EXACT_ADAGRAD,
}
POLICIES = {"lru": LRU_EvictionPolicy, "lfu": LFU_EvictionPolicy, "distance-lfu": DistanceLFU_EvictionPolicy}
state = {}


def versions():
    return {name: version(name) for name in ("fbgemm-gpu-cpu", "torchrec")}


# embeddings


def prepare_rows(keys, rows, optimizer=None, lr=0.0, eps=1e-8):
    """A table with these rows, which knows no keys; its optimizers have no Adam on the CPU."""
    values_CD = torch.from_numpy(load(rows))
    state["bags"] = SplitTableBatchedEmbeddingBagsCodegen(
        [(*values_CD.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=OPTIMIZERS[optimizer or "sgd"],
        learning_rate=lr,
        eps=eps,
        pooling_mode=PoolingMode.SUM,
    )
    state["bags"].split_embedding_weights()[0].copy_(values_CD)


def query_rows(keys, slots, grads=None):
    """The numbers of the rows of a call, and the gradient that comes back."""
    state["slots_K"] = torch.from_numpy(load(slots))
    state["offsets_K1"] = torch.arange(len(state["slots_K"]) + 1)
    if grads is not None:
        state["grads_KD"] = torch.from_numpy(load(grads))


def forward():
    state["out_KD"] = state["bags"](state["slots_K"], state["offsets_K1"])


def backward():
    state.pop("out_KD").backward(state["grads_KD"])


def train():
    forward()
    backward()


def run_rows(peer, part):
    if part == "backward":
        forward()  # not timed
    return timed({"forward": forward, "backward": backward, "train": train}[part])


def answer_rows(peer, path):
    """What a forward gives."""
    forward()
    np.save(path, state.pop("out_KD").detach().numpy())


# managed collisions


def jagged(ids_K):
    return {"id": JaggedTensor(values=ids_K, lengths=torch.ones(len(ids_K), dtype=torch.int64))}


def prepare_keys(keys):
    """A module that has admitted exactly these keys; its last slot stands for all others."""
    ids_C = torch.from_numpy(load(keys))
    state["module"] = MCHManagedCollisionModule(
        zch_size=len(ids_C) + 1,
        device=torch.device("cpu"),
        eviction_policy=LFU_EvictionPolicy(),
        eviction_interval=1,
    )
    state["module"].profile(jagged(ids_C))
    # the module numbers its slots in an order of its own
    slots_C = state["module"].remap(jagged(ids_C))["id"].values()
    state["position_of_slot"] = torch.full((len(ids_C) + 1,), -1)
    state["position_of_slot"][slots_C] = torch.arange(len(ids_C))
    state["position_of_slot"][len(ids_C)] = -1


def query_keys(keys):
    state["ids_K"] = jagged(torch.from_numpy(load(keys)))


def run_keys(peer):
    return timed(lambda: state["module"].remap(state["ids_K"]))


def answer_keys(peer, path):
    """Positions among the keys, -1 where there is none."""
    slots_K = state["module"].remap(state["ids_K"])["id"].values()
    np.save(path, state["position_of_slot"][slots_K].numpy())


# churn


def prepare_churn(capacity, policy, interval):
    """Admission and eviction happen every `interval` batches, as its users set it; a batch is also remapped."""
    state["churn", interval] = MCHManagedCollisionModule(
        zch_size=capacity + 1,
        device=torch.device("cpu"),
        eviction_policy=POLICIES[policy](),
        eviction_interval=interval,
    )


def run_churn(peer, stream, start, stop, batch_size, interval):
    """Profiles and remaps the keys start..stop of a stream, batch by batch; also how many had a slot afterwards."""
    ids = torch.from_numpy(np.array(np.load(stream, mmap_mode="r")[start:stop]))
    batches = [jagged(part) for part in ids.split(batch_size)]
    module, found = state["churn", interval], 0
    no_slot = module.output_size() - 1

    def work():
        nonlocal found
        for batch in batches:
            slots_K = module(batch)["id"].values()
            module.evict()
            found += int((slots_K != no_slot).sum())

    return timed(work) | {"found": found}


serve(globals())
