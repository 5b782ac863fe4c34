"""The process of a contender of table.working_set: DLRM-small over a table with a memory budget, a base and a spill."""

# B batch, C categorical features, F dense, D dimension, K keys of a batch
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from springtide.app.models.registry import build_model
from springtide.app.training.config import DenseOptimizerConfig
from springtide.app.training.optimization.dense_optimizer import build_optimizer
from springtide.app.training.state.spill_gc import BaseRows
from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.embeddings.torch_api.autograd import embed
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide_client.log.base import Base
from tests.bench.peers.serving import serve, timed
from tests.bench.workloads.clicks import CATEGORICAL, DENSE
from tests.bench.workloads.keys import zipf_ranks
from tests.bench.workloads.small_dlrm import DIM, MODEL, SPEC, DenseOnly, logits_of

NUM_FIELDS = len(CATEGORICAL)
OPTIMIZER = {"name": "rowwise-adagrad", "lr": 0.05, "eps": 0.1}
CHUNK = 1 << 15


def make_batch(number: int, batch_size: int, ids_a_feature: int) -> tuple[Any, ...]:
    """Return batch `number` of the stream: keys and times (K), dense (B, F), labels (B, 1)."""
    random = np.random.default_rng(number)
    ids_BC = np.stack([zipf_ranks(random, batch_size, ids_a_feature, 1.05) for _ in range(NUM_FIELDS)], axis=1)
    features_K = np.tile(np.arange(NUM_FIELDS, dtype=np.uint16), batch_size)
    dense_BF = random.random((batch_size, len(DENSE)), np.float32)
    lean_B = np.sin(ids_BC[:, 0] * 1.7) + np.cos(ids_BC[:, 1] * 0.9) + dense_BF[:, 0] - 1
    labels_B1 = (random.random(batch_size) < 1 / (1 + np.exp(-lean_B))).astype(np.float32)[:, None]
    times_K = np.full(len(features_K), number)
    return features_K, ids_BC.reshape(-1), times_K, torch.from_numpy(dense_BF), torch.from_numpy(labels_B1)


class Contender:
    """Net, table and stream; each `run` continues the stream."""

    def __init__(
        self, *, base: str, spill: str, ids_a_feature: int, batch_size: int, num_bytes: int, ahead: bool, bfloat16: bool
    ) -> None:
        """`num_bytes`: the table's budget; 0 = room for every row."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.ids_a_feature, self.batch_size, self.ahead, self.bfloat16 = ids_a_feature, batch_size, ahead, bfloat16
        num_rows = NUM_FIELDS * ids_a_feature
        config = TableConfig(dim=DIM, optimizer=OPTIMIZER, device_bytes=num_bytes or "1GiB")
        # with 2.5 slots per row hardly a bucket is full
        everything = Capacity.of_rows(5 * num_rows // 2 // WIDTH * WIDTH, num_evicted_dirty=1)
        self.spill = RocksSpill(Path(spill), dim=DIM, state_width=1)
        self.table = EmbeddingTable(
            config,
            seed=0,
            spill=self.spill,
            base=BaseRows(Base.open(Path(base))),
            capacity=None if num_bytes else everything,
            tracked=False,
        )
        self.net = build_model(MODEL, SPEC, seed=0)
        self.optimizer = build_optimizer(DenseOptimizerConfig(), self.net)
        self.number = 0
        self._age_table(num_rows, everything=not num_bytes)

    def _age_table(self, num_rows: int, *, everything: bool) -> None:
        """Bring the table into its long-term state: the more frequent half, learned since the base, is spilled.

        Gradients are zero, so rows and losses do not change. With room for all rows the other half is fetched too.
        """
        grads_KD = np.zeros((CHUNK, DIM), np.float32)
        for start in range(0, num_rows, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, num_rows))
            features_K, ids_K = (numbers % NUM_FIELDS).astype(np.uint16), numbers // NUM_FIELDS
            is_learned = start < num_rows // 2  # ids are frequency ranks
            if is_learned or everything:
                lookup = self.table.lookup(features_K, ids_K, np.zeros(len(ids_K), np.int64))
                if is_learned:
                    self.table.update(lookup, grads_KD[: len(ids_K)])
                lookup.release()
        self.spill.drain()

    def run(self, num_batches: int) -> dict[str, Any]:
        """Return the seconds until all is learned and evicted rows are on disk, and the loss before each step."""
        numbers = range(self.number, self.number + num_batches)
        self.number += num_batches
        batches = [make_batch(number, self.batch_size, self.ids_a_feature) for number in numbers]
        losses: list[float] = []
        took = timed(lambda: self._learn(batches, losses))
        return took | {"losses": losses, "counters": self.table.counters(), "rss_bytes": resident_bytes(os.getpid())}

    def _learn(self, batches: list[tuple[Any, ...]], losses: list[float]) -> None:
        prefetched = None
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            features_K, ids_K, times_K, dense_BF, labels_B1 = batch
            lookup = self.table.lookup(features_K, ids_K, times_K, prefetched=prefetched)
            prefetched = None
            if self.ahead and following is not None:
                prefetched = self.table.prefetch(*following[:3])
            losses.append(self._step(lookup, dense_BF, labels_B1))
        self.spill.drain()

    def _step(self, lookup: Any, dense_BF: torch.Tensor, labels_B1: torch.Tensor) -> float:
        rows_BCD = embed(self.table, lookup).reshape(len(labels_B1), NUM_FIELDS, DIM)
        logits_B1 = logits_of(self.net, rows_BCD, dense_BF, bfloat16=self.bfloat16)
        loss = binary_cross_entropy_with_logits(logits_B1, labels_B1, reduction="sum")  # as in the learner
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach()) / len(labels_B1)

    def dense_only(self, num_batches: int) -> dict[str, float]:
        """Return the seconds of the net alone on resident rows: the limit of any table."""
        net = DenseOnly(self.batch_size, bfloat16=self.bfloat16)
        return timed(lambda: net.run(num_batches * self.batch_size))

    def close(self) -> None:
        self.table.check_integrity()
        self.table.close()


def resident_bytes(pid: int) -> int:
    """Return the anonymous memory of a process and its children."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                total = int(line.split()[1]) * 1024
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return total
    return total + sum(resident_bytes(int(child)) for child in children)


def main() -> None:
    """Answer the calls of the benchmark, the first of which is `prepare` with the settings of a Contender."""
    functions: dict[str, Callable[..., Any]] = {}

    def prepare(**settings: Any) -> None:
        contender = Contender(**settings)
        functions.update(run=contender.run, dense_only=contender.dense_only, close=contender.close)

    functions["prepare"] = prepare
    serve(functions)


if __name__ == "__main__":
    main()
