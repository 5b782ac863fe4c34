"""The fastest loop for train.e2e from other people's parts: confluent-kafka, pyarrow, FBGEMM, torch's fused Adam.

A thread reads and decodes ahead while the step computes. FBGEMM has no hash: ids are taken modulo a table's size. Runs
in the interpreter that has FBGEMM; the net is Springtide's own.
"""

# N samples, B batch, C categorical, F dense features, D dimension
import io
import queue
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import fbgemm_gpu  # noqa: F401  registers its operators
import numpy as np
import pyarrow as pa
import pyarrow.json
import torch
from confluent_kafka import Consumer, TopicPartition, libversion
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    OptimType,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from serving import serve, timed

from springtide.app.models.registry import build_model
from tests.bench.train.plain_loop import ROWS_A_FEATURE
from tests.bench.workloads.clicks import CATEGORICAL, DENSE, TOPIC
from tests.bench.workloads.small_dlrm import DIM, MODEL, SPEC, logits_of

torch.set_num_threads(2)
BATCHES_AHEAD = 4
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids (B, C), numbers (B, F), labels (B,)
state: dict[str, Any] = {}


def versions() -> dict[str, str]:
    return {"confluent-kafka": libversion()[0]} | {name: version(name) for name in ("fbgemm-gpu-cpu", "pyarrow")}


# decoding

FIELDS = [(name, pa.int64()) for name in CATEGORICAL] + [(name, pa.float32()) for name in DENSE]
PARSE = pyarrow.json.ParseOptions(
    explicit_schema=pa.schema([*FIELDS, ("click", pa.float32())]), unexpected_field_behavior="ignore"
)


def decode(values: list[bytes]) -> Columns:
    """pyarrow is faster here than msgspec and a tuple a record."""
    data = b"\n".join(values)
    table = pyarrow.json.read_json(io.BytesIO(data), pyarrow.json.ReadOptions(block_size=len(data) + 1), PARSE)
    columns = [column.to_numpy() for column in table.columns]
    ids_BC, numbers_BF = np.stack(columns[: len(CATEGORICAL)], 1), np.stack(columns[len(CATEGORICAL) : -1], 1)
    return ids_BC, numbers_BF, columns[-1].copy()  # torch wants an array that may be written


def batches(address: str, num_samples: int, batch_size: int) -> Iterator[Columns]:
    """Yield the first samples of the topic's only partition as columns."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "peer",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[bytes] = []
    for _ in range(num_samples // batch_size):
        while len(values) < batch_size:
            values += [message.value() for message in consumer.consume(batch_size - len(values), 1.0)]
        yield decode(values)
        values = []
    consumer.close()


def ahead(columns: Iterator[Columns]) -> Iterator[Columns]:
    """Yield the same, made by a thread of its own."""
    made: queue.Queue[Columns | None] = queue.Queue(BATCHES_AHEAD)

    def make() -> None:
        for one in columns:
            made.put(one)
        made.put(None)

    thread = threading.Thread(target=make)
    thread.start()
    while (one := made.get()) is not None:
        yield one
    thread.join()


# learning


def prepare(bfloat16: bool) -> None:
    """A new net and new rows."""
    torch.manual_seed(0)
    net = build_model(MODEL, SPEC, seed=0)
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS_A_FEATURE * len(CATEGORICAL), DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=OptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.05,
        eps=1e-8,
        pooling_mode=PoolingMode.SUM,  # of one id: its fast path on the CPU
    )
    bags.split_embedding_weights()[0].uniform_(-0.01, 0.01)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001, fused=True)
    state.update(bfloat16=bfloat16, net=net, bags=bags, optimizer=optimizer)


def step(columns: Columns) -> float:
    """Learn one batch; return its loss before the update."""
    net, (ids_BC, numbers_BF, labels_B) = state["net"], columns
    rows_K = torch.from_numpy((ids_BC % ROWS_A_FEATURE + np.arange(len(CATEGORICAL)) * ROWS_A_FEATURE).ravel())
    dense_BF, batch = torch.from_numpy(numbers_BF), len(labels_B)
    net.observe_inputs(dense_BF)
    rows_BCD = state["bags"](rows_K, torch.arange(len(rows_K) + 1)).view(batch, len(CATEGORICAL), DIM)
    logits_B1 = logits_of(net, rows_BCD, dense_BF, bfloat16=state["bfloat16"])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits_B1[:, 0], torch.from_numpy(labels_B))
    state["optimizer"].zero_grad()
    loss.backward()  # FBGEMM's rows too
    state["optimizer"].step()
    return float(loss.detach())


def run(address: str, num_samples: int, batch_size: int) -> dict[str, float]:
    """Learn; return the seconds, and the mean progressive logloss."""
    losses: list[float] = []

    def learn() -> None:
        losses.extend(step(columns) for columns in ahead(batches(address, num_samples, batch_size)))

    return timed(learn) | {"loss": float(np.mean(losses))}


if __name__ == "__main__":
    serve(globals())
