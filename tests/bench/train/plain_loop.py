"""The peer of train.e2e, as most people would write it: kafka-python, json.loads, sparse nn.Embedding, Adagrad."""

# B batch, C categorical features, D dimension
import json

import numpy as np
import torch
from torch import nn

from springtide.app.models.registry import build_model
from springtide.stream.kafka.library import kafka
from tests.bench.workloads.clicks import CATEGORICAL, DENSE, TOPIC
from tests.bench.workloads.small_dlrm import DIM, MODEL, SPEC, logits_of

ROWS_A_FEATURE = 200_000


class PlainLoop:
    """A consumer, a list of dicts, one sparse embedding table for all features; ids are taken modulo its size."""

    def __init__(self, *, bfloat16: bool) -> None:
        self.net, self.bfloat16 = build_model(MODEL, SPEC, seed=0), bfloat16
        self.rows = nn.Embedding(ROWS_A_FEATURE * len(CATEGORICAL), DIM, sparse=True)
        nn.init.uniform_(self.rows.weight, -0.01, 0.01)
        self.first_row_C = torch.arange(len(CATEGORICAL)) * ROWS_A_FEATURE
        self.sparse_optimizer = torch.optim.Adagrad(self.rows.parameters(), lr=0.05)
        self.dense_optimizer = torch.optim.Adam(self.net.parameters(), lr=0.001)

    def run(self, address: str, num_samples: int, batch_size: int) -> float:
        """Learn the first samples of the topic's only partition; return their mean progressive logloss."""
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address,
            enable_auto_commit=False,
            max_poll_records=batch_size,
            fetch_max_wait_ms=5,
            max_partition_fetch_bytes=8 << 20,
        )
        partition = kafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        records: list[dict[str, object]] = []
        losses: list[float] = []
        learned = 0
        while learned < num_samples:
            for polled in consumer.poll(timeout_ms=1000).values():
                records += [json.loads(record.value) for record in polled]
            while len(records) >= batch_size and learned < num_samples:
                losses.append(self.step(records[:batch_size]))
                del records[:batch_size]
                learned += batch_size
        consumer.close(autocommit=False)
        return float(np.mean(losses))

    def step(self, records: list[dict[str, object]]) -> float:
        """Learn one batch (columns, forward, loss, backward, two optimizers); return the loss before the update."""
        ids_BC = torch.tensor([[record[name] for name in CATEGORICAL] for record in records], dtype=torch.int64)
        dense_BF = torch.tensor([[record[name] for name in DENSE] for record in records], dtype=torch.float32)
        labels_B = torch.tensor([record["click"] for record in records], dtype=torch.float32)
        self.net.observe_inputs(dense_BF)  # the statistics of the dense features are part of the net
        rows_BCD = self.rows(ids_BC % ROWS_A_FEATURE + self.first_row_C)
        logits_B1 = logits_of(self.net, rows_BCD, dense_BF, bfloat16=self.bfloat16)
        loss = nn.functional.binary_cross_entropy_with_logits(logits_B1[:, 0], labels_B)
        self.sparse_optimizer.zero_grad()
        self.dense_optimizer.zero_grad()
        loss.backward()
        self.sparse_optimizer.step()
        self.dense_optimizer.step()
        return float(loss.detach())
