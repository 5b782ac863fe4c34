"""gpu.train: train.e2e on a GPU: samples/s from decoded columns and from Kafka, and the time of each stage.

DLRM (bottom 512-256, top 512-256) over 26 categorical and 13 dense features, dim 16 and 128; table and net on the GPU.
Switched on one after another: prefetch, our dot interaction, CUDA graphs, torch.compile. The result is first checked
against the host's. Needs an NVIDIA GPU, and exits with a message without one.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from springtide.app.models.interactions import dlrm
from springtide.app.models.interactions.dot_interaction import torch_dot_interaction
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.training.config import TrainConfig, with_adagrad_eps
from springtide.app.training.device import TrainDevice, capture_cuda_graph, resolve_device
from springtide.app.training.step.cuda_graphs import CudaGraphStep
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.learning_step import LearningStep, LossObjective
from springtide.embeddings.config import TableConfig
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from springtide.stream.columns import Batch
from springtide.stream.positions import Partition
from springtide_client.features import Features
from tests.bench.harness.report import Case, arguments, fail, report, save_lines, timed
from tests.bench.workloads.clicks import CATEGORICAL, DENSE, SCHEMA, TOPIC, zipf_ids
from tests.bench.workloads.small_dlrm import MODEL
from tests.support.batches import batch_of

AGREES = 0.02  # relative difference of the mean logloss between bfloat16 sums in two orders


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes of a run."""

    dims: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    num_batches: int  # per repeat
    repeats: int
    kafka_samples: int
    table_bytes: str


FULL = Size(
    dims=(16, 128),
    batch_sizes=(4096, 16384),
    num_batches=64,
    repeats=5,
    kafka_samples=262_144,
    table_bytes="16GiB",
)
QUICK = Size(dims=(16,), batch_sizes=(4096,), num_batches=16, repeats=2, kafka_samples=32_768, table_bytes="2GiB")


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Which optimizations are on."""

    name: str
    ahead: bool = False  # the next batch's columns and rows are uploaded during this step
    fused: bool = False
    capture: bool = False
    compiled: bool = False


STEPS = (
    Switches(name="plain"),
    Switches(name="+ look-ahead", ahead=True),
    Switches(name="+ dot interaction", ahead=True, fused=True),
    Switches(name="+ graphs", ahead=True, fused=True, capture=True),
    Switches(name="+ torch.compile", ahead=True, fused=True, capture=True, compiled=True),
)
ALL_BUT_COMPILED = STEPS[3]


@dataclass(frozen=True)
class Machine:
    """The machine of a run; tests replace it with one without a GPU."""

    device: TrainDevice
    table_device: str | Ops
    capture: Any
    wait: Callable[[], None]  # waits for all work on the device


def gpu() -> Machine:
    """Return torch's GPU; ValueError if there is none."""
    return Machine(resolve_device(TrainConfig(device="cuda")), "cuda", capture_cuda_graph, torch.cuda.synchronize)


def make_batches(num: int, size: int, *, seed: int = 0) -> list[Batch]:
    """Return decoded columns: Zipf ids, a label that depends on the ids of two features and on one number."""
    random = np.random.default_rng(seed)
    batches = []
    for number in range(num):
        ids_NC = zipf_ids(random, (size, len(CATEGORICAL)))
        dense_NF = random.lognormal(1.0, 1.0, (size, len(DENSE))).astype(np.float32)
        lean_N = np.sin(ids_NC[:, 0] * 1.7) + np.cos(ids_NC[:, 1] * 0.9) + 0.3 * np.log(dense_NF[:, 0]) - 1.5
        labels_N = random.random(size) < 1 / (1 + np.exp(-lean_N))
        event_ms_N = 1_600_000_000_000 + number * size + np.arange(size)
        positions = {Partition(TOPIC, 0): (number + 1) * size}
        batches.append(batch_of(Features(ids_NC, (), dense_NF), labels_N, event_ms_N, positions))
    return batches


@contextmanager
def switched(switches: Switches) -> Iterator[None]:
    """Use our dot interaction or torch's within the context."""
    ours = dlrm.dot_interaction
    if not switches.fused:
        dlrm.dot_interaction = torch_dot_interaction
    try:
        yield
    finally:
        dlrm.dot_interaction = ours


class Bench:
    """A machine and the sizes of the run."""

    def __init__(self, machine: Machine, size: Size) -> None:
        self.machine, self.size = machine, size

    def learner(
        self, dim: int, batch_size: int, switches: Switches | None, *, exchange: Exchange | None = None
    ) -> Learner:
        """Make an untrained learner; on the host if `switches` is None. `exchange`: between ranks."""
        machine = self.machine
        settings = with_adagrad_eps(TableConfig(dim=dim, device_bytes=self.size.table_bytes))
        where = "cpu" if switches is None else machine.table_device
        table = EmbeddingTable(settings, seed=0, tracked=False, device=where)
        model = build_model(MODEL, ModelSpec.of(SCHEMA, dim), seed=0)
        device = TrainDevice() if switches is None else machine.device
        learner = Learner(model, table, TrainConfig(batch_size=batch_size), SCHEMA, device=device, exchange=exchange)
        if switches is not None:
            net = torch.compile(learner.model) if switches.compiled else learner.model
            learner.objective = LossObjective(learner.model, net=net)
            step = LearningStep(learner.model, learner.update, learner.global_batch)
            learner.learning_step = CudaGraphStep(step, machine.capture, batch_size) if switches.capture else step
        return learner

    def check(self, dim: int, batches: Sequence[Batch], switches: Switches) -> None:
        """Check that the device learns as well as the host."""
        host = learn(self.learner(dim, len(batches[0]), None), batches, ahead=False)
        there = learn(self.learner(dim, len(batches[0]), switches), batches, ahead=switches.ahead)
        if not abs(there - host) <= AGREES:
            fail(f"{switches.name}: the logloss is {there:.4f}, the host's {host:.4f}")

    def column_case(self, dim: int, batches: Sequence[Batch], switches: Switches) -> Case:
        """Measure from decoded columns to updated weights."""
        num = sum(map(len, batches))
        with switched(switches):
            self.check(dim, batches[:8], switches)
            learner = self.learner(dim, len(batches[0]), switches)
            learn(learner, batches, ahead=switches.ahead)
            rates = [
                timed(lambda: self.finish(learn(learner, batches, ahead=switches.ahead)), num)
                for _ in range(self.size.repeats)
            ]
        return Case(f"columns, {switches.name}, dim {dim}, B {len(batches[0])}", "samples/s", rates, {})

    def stage_cases(self, dim: int, batches: Sequence[Batch], switches: Switches) -> list[Case]:
        """Measure each stage as if it were a whole step; each waits for the device, so stages do not overlap."""
        with switched(switches):
            learner = self.learner(dim, len(batches[0]), switches)
            learn(learner, batches, ahead=False)
            seconds: dict[str, list[float]] = {}
            with watched(learner, self.machine.wait, seconds):
                learn(learner, batches, ahead=False)
        title = f"dim {dim}, B {len(batches[0])}, {switches.name}"
        return [
            Case(f"stage {stage}, {title}", "steps/s", [1 / s for s in took], {}) for stage, took in seconds.items()
        ]

    def kafka_case(self, dim: int, batch_size: int) -> Case:
        """Measure from a topic's bytes to updated weights, as in the trainer."""
        from tests.bench.gpu.kafka_input import filled_topic, from_topic

        num = self.size.kafka_samples // batch_size * batch_size
        with filled_topic(num) as log:
            learner = self.learner(dim, batch_size, ALL_BUT_COMPILED)
            rates = [
                timed(lambda: self.finish(from_topic(learner, log, num)), num) for _ in range(self.size.repeats + 1)
            ]
        return Case(f"Kafka, {ALL_BUT_COMPILED.name}, dim {dim}, B {batch_size}", "samples/s", rates[1:], {})

    def finish(self, _: object) -> None:
        """Wait for all work on the device."""
        self.machine.wait()


def learn(learner: Learner, batches: Sequence[Batch], *, ahead: bool) -> float:
    """Learn the batches and return the mean logloss; each report is read after the next step was started."""
    losses, late = [], None
    for batch, next_batch in zip(batches, [*batches[1:], None], strict=True):
        before, late = late, learner.start_step(batch, next_batch if ahead else None)
        if before is not None:
            losses.append(before().loss)
    if late is not None:
        losses.append(late().loss)
    return float(np.mean(losses))


@contextmanager
def watched(learner: Learner, wait: Callable[[], None], seconds: dict[str, list[float]]) -> Iterator[None]:
    """Time the stages of a learner's steps by wrapping the functions that they call."""
    learning_step = learner.learning_step
    stages = {"keys and copy": (learner.keys, "prepare"), "look-up": (learner.table.rows, "lookup")}
    stages |= {"rows": (learner.table.rows, "gather_slice"), "row updates": (learner.table.rows, "update")}

    def watch(stage: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            wait()
            start = time.perf_counter()
            result = do(*arguments, **named)
            wait()
            seconds.setdefault(stage, []).append(time.perf_counter() - start)
            return result

        return run

    try:
        for stage, (owner, name) in stages.items():
            setattr(owner, name, watch(stage, getattr(owner, name)))
        learner.learning_step = watch("dense net, row updates included", learning_step)
        yield
    finally:
        for owner, name in stages.values():
            delattr(owner, name)
        learner.learning_step = learning_step


def run(bench: Bench, steps: Sequence[Switches]) -> list[Case]:
    """Run every case."""
    cases = []
    for dim in bench.size.dims:
        for batch_size in bench.size.batch_sizes:
            batches = make_batches(bench.size.num_batches, batch_size)
            cases += [bench.column_case(dim, batches, switches) for switches in steps]
            cases += bench.stage_cases(dim, batches, ALL_BUT_COMPILED)
        try:
            cases.append(bench.kafka_case(dim, max(bench.size.batch_sizes)))
        except ImportError as error:
            print(f"with Kafka, dim {dim}: not measured, {error.name} is not installed")
    return cases


def main() -> None:
    options = arguments(__doc__)
    try:
        machine = gpu()
    except ValueError as error:
        sys.exit(f"train.e2e on the GPU: {error}")
    cases = run(Bench(machine, QUICK if options.quick else FULL), STEPS)
    report("train.e2e on the GPU", cases, options, packages=("torch", "cupy-cuda13x", "numpy", "numba", "kafka-python"))
    save_lines(options, cases)
