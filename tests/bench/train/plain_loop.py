"""The peer of train.e2e, as most people would write it: kafka-python, json.loads, sparse nn.Embedding, Adagrad."""

# B batch, C categorical features, D dimension
import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from springtide.stream.kafka.library import kafka

ROWS_A_FEATURE = 200_000


class PlainLoop:
    """A consumer, a list of dicts, one sparse embedding table for all features; ids are taken modulo its size."""

    def __init__(
        self,
        dense_net: nn.Module,
        *,
        categorical: Sequence[str],
        dense: Sequence[str],
        label: str,
        dim: int,
        bfloat16: bool,
    ) -> None:
        self.net = dense_net
        self.categorical, self.dense, self.label = list(categorical), list(dense), label
        self.bfloat16 = bfloat16
        self.rows = nn.Embedding(ROWS_A_FEATURE * len(categorical), dim, sparse=True)
        nn.init.uniform_(self.rows.weight, -0.01, 0.01)
        self.first_row_C = torch.arange(len(categorical)) * ROWS_A_FEATURE
        self.sparse_optimizer = torch.optim.Adagrad(self.rows.parameters(), lr=0.05)
        self.dense_optimizer = torch.optim.Adam(self.net.parameters(), lr=0.001)

    def run(self, address: str, topic: str, num_samples: int, batch_size: int) -> float:
        """Learn the first samples of the topic's only partition; return their mean progressive logloss."""
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address,
            enable_auto_commit=False,
            max_poll_records=batch_size,
            fetch_max_wait_ms=5,
            max_partition_fetch_bytes=8 << 20,
        )
        partition = kafka.TopicPartition(topic, 0)
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
        ids_BC = torch.tensor([[record[name] for name in self.categorical] for record in records], dtype=torch.int64)
        dense_BF = torch.tensor([[record[name] for name in self.dense] for record in records], dtype=torch.float32)
        labels_B = torch.tensor([record[self.label] for record in records], dtype=torch.float32)
        self.net.observe_inputs(dense_BF)  # the statistics of the dense features are part of the net
        rows_BCD = self.rows(ids_BC % ROWS_A_FEATURE + self.first_row_C)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            logits_B = self.forward(rows_BCD, dense_BF)
        loss = nn.functional.binary_cross_entropy_with_logits(logits_B.float(), labels_B)
        self.sparse_optimizer.zero_grad()
        self.dense_optimizer.zero_grad()
        loss.backward()
        self.sparse_optimizer.step()
        self.dense_optimizer.step()
        return float(loss.detach())

    def forward(self, rows_BCD: Tensor, dense_BF: Tensor) -> Tensor:
        """Compute the net that Springtide trains, on the same inputs."""
        batch, _, dim = rows_BCD.shape
        none_pooled = rows_BCD.new_zeros(batch, 0, dim)
        none_sequence = rows_BCD.new_zeros(batch, 0, 1, dim)
        none_length = torch.zeros(batch, 0, dtype=torch.int64)
        logits: Tensor = self.net(rows_BCD, none_pooled, none_sequence, none_length, dense_BF)
        return logits[:, 0]
