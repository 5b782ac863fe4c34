"""train.net: prepared columns to updated weights with each setting of the net's training, against none of them.

DLRM-small, as in train.e2e. `--compiled` compares the dense step alone with its net under torch.compile, which needs a
C++ compiler, and prints how long it takes to compile each size of batch.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from springtide.app.models.registry import build_model
from springtide.app.training.config import TableSettings, TrainConfig
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.learning_step import LearningStep, LossObjective, StepColumns
from springtide.stream.columns import Batch
from springtide.stream.positions import Partition
from springtide_client.features import Features
from springtide_client.model.inputs import ModelInputs
from tests.bench.harness.machine_limits import HAS_BFLOAT16
from tests.bench.harness.report import Case, alternate, argument_parser, report, timed, use_trainer_process_settings
from tests.bench.quality.one_pass import RunConfig, make_learner
from tests.bench.workloads.clicks import CATEGORICAL, DENSE, SCHEMA, TOPIC
from tests.bench.workloads.small_dlrm import DIM, MODEL, SPEC
from tests.support.batches import batch_of

CLIP = {"clip_norm": 1.0}
SCHEDULE = {"lr_schedule": {"name": "cosine", "warmup_samples": 10_000, "decay_samples": 1_000_000}}
AVERAGES = {"ema_half_life_samples": 100_000}
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "clip_norm": CLIP,
    "averages": AVERAGES,
    "clip, schedule, averages": CLIP | SCHEDULE | AVERAGES,
    "accumulate 4": {"accumulate_batches": 4},
    "adamw": {"optimizer": {"name": "adamw", "lr": 0.001, "weight_decay": 0.01}},
    "lion": {"optimizer": {"name": "lion", "lr": 0.0003}},
}


def batches_of(size: int, num: int) -> list[Batch]:
    """Return decoded columns of ids that come again in each pass."""
    random, batches = np.random.default_rng(0), []
    for number in range(num):
        ids_NC = random.integers(0, 50_000, (size, len(CATEGORICAL)))
        dense_NF = random.lognormal(1, 1, (size, len(DENSE))).astype(np.float32)
        event_ms_N = 1_600_000_000_000 + number * size + np.arange(size)
        positions, labels_N = {Partition(TOPIC, 0): (number + 1) * size}, random.random(size) < 0.3
        batches.append(batch_of(Features(ids_NC, (), dense_NF), labels_N, event_ms_N, positions))
    return batches


def learner_with(size: int, settings: dict[str, Any]) -> Learner:
    """Return an untrained learner, in bfloat16 where the processor has it."""
    train = TrainConfig(batch_size=size, bfloat16=HAS_BFLOAT16, **settings)
    return make_learner(RunConfig(schema=SCHEMA, model=MODEL, train=train, table=TableSettings(dim=DIM, num_threads=2)))


def compare_settings(size: int, num: int, repeats: int) -> list[Case]:
    """Learn the same batches with each setting, in turn."""
    batches = batches_of(size, num)
    learners = {name: learner_with(size, settings) for name, settings in SETTINGS.items()}

    def rate(learner: Learner) -> float:
        return timed(lambda: [learner.step(batch) for batch in batches], size * num)

    rates = alternate({name: partial(rate, learner) for name, learner in learners.items()}, repeats=repeats)
    none = {"none": rates.pop("none")}
    return [Case(f"{name}, B {size}", "samples/s", mine, none) for name, mine in rates.items()]


def compare_compiled(size: int, repeats: int, steps: int) -> Case:
    """Time the dense step on prepared rows, as it is and with its net compiled."""
    inputs, labels_N1, ones_N = prepared(size)
    runs = {}
    for name in ("compiled", "plain"):
        net = build_model(MODEL, SPEC, seed=0)
        update = NetUpdate(net, TrainConfig(batch_size=size))
        objective = LossObjective(net, net=torch.compile(net) if name == "compiled" else net)
        step = partial(LearningStep(net, update), objective)
        runs[name] = partial(run_steps, step, inputs, labels_N1, ones_N, steps)
        began = time.perf_counter()
        run_steps(step, inputs, labels_N1, ones_N, 1)
        print(f"{name}, B {size}: the first step took {time.perf_counter() - began:.2f} s", flush=True)
    rates = alternate({name: partial(timed, run, size * steps) for name, run in runs.items()}, repeats=repeats)
    return Case(f"dense step compiled, B {size}", "samples/s", rates.pop("compiled"), rates)


def prepared(size: int) -> tuple[ModelInputs, Tensor, Tensor]:
    """Return rows and numbers of a batch, labels and weights."""
    rows_NCD = (torch.randn(size, len(CATEGORICAL), DIM) * 0.01).requires_grad_()
    none = torch.zeros(size, 0, DIM), torch.zeros(size, 0, 1, DIM), torch.zeros(size, 0, dtype=torch.int64)
    inputs = ModelInputs(rows_NCD, *none, torch.rand(size, len(DENSE)))
    return inputs, (torch.rand(size, 1) < 0.3).float(), torch.ones(size)


def run_steps(step: Callable[..., object], inputs: ModelInputs, labels_N1: Tensor, ones_N: Tensor, num: int) -> None:
    """Take dense steps, in bfloat16 where the processor has it."""
    for _ in range(num):
        inputs.categorical.grad = None
        step(StepColumns(inputs, labels_N1, ones_N), bfloat16=HAS_BFLOAT16)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--compiled", action="store_true", help="the dense step under torch.compile instead")
    options = parser.parse_args()
    use_trainer_process_settings()
    torch.set_num_threads(2)
    repeats = 2 if options.quick else 7
    sizes = [1024] if options.quick else [4096, 1024]
    cases: list[Case] = []
    for size in sizes:
        num = max(2, (4096 if options.quick else 32_768) // size)
        if options.compiled:
            cases.append(compare_compiled(size, repeats, num))
        else:
            cases += compare_settings(size, num, repeats)
    report("train.net", cases, options, packages=("torch", "numba", "numpy"))
