"""Learner.step by batch size in a process of its own, so that another checkout's can be measured beside this one's.

Runs with the checkout to measure on PYTHONPATH, and takes from there whatever fits its own product. A call names a case
of `CASES`.
"""

# N samples, C categorical, D dimension, F dense features
import cProfile
import io
import pstats
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from serving import serve, timed
from torch import nn

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.processes.tuning import keep_freed_memory
from springtide.app.training.config import TableSettings, TrainConfig
from springtide.stream.columns import Batch
from springtide_client.features import Features
from springtide_client.schema import Schema
from tests.bench.quality.one_pass import RunConfig, make_learner
from tests.bench.quality.simulated_log import simulate_log, simulated_schema
from tests.bench.workloads.clicks import SCHEMA, zipf_ids
from tests.bench.workloads.small_dlrm import DIM, MODEL
from tests.support.batches import batch_of, cut

WARM_UP_BATCH = 1024
TWO_IDS = Schema(labels=("click",), categorical=("user_id", "item_id"))


class OwnNet(nn.Module):
    """A net as a user would write it, by the public interface: two layers over the rows side by side."""

    def __init__(self, spec: ModelSpec, hidden: int = 128) -> None:
        super().__init__()
        width = spec.num_categorical * spec.dim + spec.num_dense
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, spec.num_labels))

    def forward(
        self,
        categorical_NCD: torch.Tensor,
        pooled_NPD: torch.Tensor,
        sequence_NSTD: torch.Tensor,
        length_NS: torch.Tensor,
        dense_NF: torch.Tensor,
    ) -> torch.Tensor:
        return self.layers(torch.cat([categorical_NCD.flatten(1), dense_NF], 1))


def clicks_of(schema: Schema, num: int) -> Batch:
    """Return samples whose label depends on the ids of two fields."""
    random = np.random.default_rng(0)
    ids_NC = zipf_ids(random, (num, len(schema.categorical)))
    dense_NF = random.lognormal(1.0, 1.0, (num, len(schema.dense))).astype(np.float32)
    lean_N = np.sin(ids_NC[:, 0] * 1.7) + np.cos(ids_NC[:, 1] * 0.9) - 1.0
    return batch_of(Features(ids_NC, (), dense_NF), random.random(num) < 1 / (1 + np.exp(-lean_N)))


def config_of(schema: Schema, model: ModelConfig, dim: int | None = None) -> RunConfig:
    """Return the defaults with one thread."""
    table = TableSettings(device_bytes="512MiB", num_threads=1, **({} if dim is None else {"dim": dim}))
    return RunConfig(schema=schema, model=model, train=TrainConfig(threads=1), table=table)


CASES: dict[str, Callable[[], RunConfig]] = {
    "two_ids": lambda: config_of(TWO_IDS, ModelConfig(wide=True)),
    "simulator": lambda: config_of(simulated_schema(), ModelConfig(wide=True)),
    "dlrm_small": lambda: config_of(SCHEMA, ModelConfig(name=MODEL.name, options=MODEL.options, wide=True), DIM),
    "own_net": lambda: config_of(TWO_IDS, ModelConfig(name="step_peer:OwnNet", wide=True)),
}


class Steps:
    """A learner that has learned all samples of its case once, and learns them again and again."""

    def __init__(self, case: str, num_samples: int) -> None:
        self.config = CASES[case]()
        self.samples = (
            simulate_log(num_samples)[0] if case == "simulator" else clicks_of(self.config.schema, num_samples)
        )
        self.learner, self._next = make_learner(self.config), 0
        batches = self.batches(WARM_UP_BATCH, num_samples // WARM_UP_BATCH)
        self.logits_N = np.concatenate([self.learner.step(batch).logits_NL[:, 0] for batch in batches])

    def batches(self, size: int, num: int) -> list[Batch]:
        """Return the next batches; after the last sample comes the first."""
        found = []
        for _ in range(num):
            start = self._next if self._next + size <= len(self.samples) else 0
            self._next = start + size
            found.append(cut(self.samples, start, self._next))
        return found


class Plain:
    """The net of `own_net` in plain torch: forward, loss, backward to net and rows, and the step of Adam."""

    def __init__(self, config: RunConfig) -> None:
        self.spec = ModelSpec.of(config.schema, config.table.dim)
        self.net = OwnNet(self.spec)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.001)

    def step(self, tensors: tuple[torch.Tensor, ...], labels_NL: torch.Tensor, weights_N1: torch.Tensor) -> None:
        logits_NL = self.net(*tensors)
        loss = nn.functional.binary_cross_entropy_with_logits(logits_NL, labels_NL, weights_N1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def tensors_of(self, num: int) -> tuple[torch.Tensor, ...]:
        """Return what a net sees of samples with nothing but single ids: rows, no lists, no numbers."""
        rows_NCD = torch.randn(num, self.spec.num_categorical, self.spec.dim).mul_(0.01).requires_grad_()
        none = torch.zeros(num, 0, self.spec.dim), torch.zeros(num, 0, 1, self.spec.dim)
        return rows_NCD, *none, torch.zeros(num, 0, dtype=torch.int64), torch.zeros(num, 0)


@cache
def steps_of(case: str, num_samples: int) -> Steps:
    torch.set_num_threads(1)
    return Steps(case, num_samples)


@cache
def plain_of(case: str) -> Plain:
    return Plain(CASES[case]())


def first_logits(case: str, num_samples: int, path: str) -> None:
    """Write each sample's logit from before it was first learned to `path`, .npy."""
    np.save(path, steps_of(case, num_samples).logits_N)


def learn(case: str, num_samples: int, size: int, num: int) -> dict[str, float]:
    """Return the seconds of `num` steps of `size` samples."""
    steps = steps_of(case, num_samples)
    learner, batches = steps.learner, steps.batches(size, num)
    return timed(lambda: [learner.step(batch) for batch in batches])


def learn_plain(case: str, num_samples: int, size: int, num: int) -> dict[str, float]:
    """Return the seconds of as many steps of the case's net alone, on as many samples."""
    plain, batches = plain_of(case), steps_of(case, num_samples).batches(size, num)
    inputs = [
        (plain.tensors_of(size), torch.from_numpy(batch.labels_NL), torch.from_numpy(batch.weights_N)[:, None])
        for batch in batches
    ]
    return timed(lambda: [plain.step(*one) for one in inputs])


def profile(case: str, num_samples: int, size: int, num: int) -> str:
    """Return where steps spend their time, by function."""
    steps = steps_of(case, num_samples)
    learner, batches = steps.learner, steps.batches(size, num)
    learner.step(batches[0])
    profiler, text = cProfile.Profile(), io.StringIO()
    for batch in batches:
        profiler.runcall(learner.step, batch)
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler, stream=text).sort_stats(order).print_stats(50)
    return text.getvalue()


def versions() -> dict[str, str]:
    return {"torch": torch.__version__}


if __name__ == "__main__":
    keep_freed_memory()
    serve(globals())
