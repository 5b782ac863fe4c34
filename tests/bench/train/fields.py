"""train.fields: processor time of the wide part by the number of id fields.

Each number of fields is learned with the wide part and without, in turn, in batches of 4,096 samples on one core. Ids
are Zipf-distributed. The rows of a batch are new as often as they are in a stream: every batch is another one.
"""

import time
from functools import partial
from statistics import median

import numpy as np

from springtide.app.models.config import ModelConfig
from springtide.app.training.config import TableSettings, TrainConfig
from springtide.app.training.step.learner import Learner
from springtide.stream.columns import Batch
from springtide_client.features import Features
from springtide_client.schema import Schema
from tests.bench.harness.report import Case, alternate, arguments, report, use_trainer_process_settings
from tests.bench.quality.one_pass import RunConfig, make_learner
from tests.bench.workloads.clicks import zipf_ids
from tests.support.batches import batch_of

NUM_FIELDS = (5, 10, 20, 40, 80, 150)
BATCH = 4096
WARM_UP = 2  # batches, after which few pairs of fields live


def make_batches(num_fields: int, number: int) -> list[Batch]:
    """Return batches whose label depends on the ids of two fields."""
    random, batches = np.random.default_rng(num_fields), []
    for _ in range(number):
        ids_NC = zipf_ids(random, (BATCH, num_fields))
        lean_N = np.sin(ids_NC[:, 0] * 1.7) + np.cos(ids_NC[:, 1] * 0.9) - 1.0
        features = Features(ids_NC, (), np.zeros((BATCH, 0), np.float32))
        batches.append(batch_of(features, random.random(BATCH) < 1 / (1 + np.exp(-lean_N))))
    return batches


def learner_of(num_fields: int, *, wide: bool) -> Learner:
    """Return a learner of a net that costs little: the wide part costs the same beside any."""
    return make_learner(
        RunConfig(
            schema=Schema(labels=("click",), categorical=tuple(f"c{number}" for number in range(num_fields))),
            model=ModelConfig(name="logistic", wide=wide),
            train=TrainConfig(batch_size=BATCH, threads=1),
            table=TableSettings(dim=16, device_bytes="2GiB"),
        )
    )


def measure(num_fields: int, repeats: int) -> Case:
    """Compare with the net alone, in samples a second of one core."""
    batches = make_batches(num_fields, WARM_UP + 1 + repeats)
    learners = {name: learner_of(num_fields, wide=name == "ours") for name in ("ours", "the net alone")}
    left = {name: list(batches) for name in learners}

    def rate(name: str) -> float:
        start = time.process_time()
        learners[name].step(left[name].pop(0))
        return BATCH / (time.process_time() - start)

    for name in learners:
        for _ in range(WARM_UP):
            rate(name)
    rates = alternate({name: partial(rate, name) for name in learners}, repeats=repeats)
    for learner in learners.values():
        learner.table.close()
    whole, net = (1e6 / median(rates[name]) for name in learners)
    print(f"{num_fields} fields: {whole:.1f} us a sample, the net alone {net:.1f}, so the wide part {whole - net:.1f}")
    return Case(f"{num_fields} id fields", "samples/s of one core", rates.pop("ours"), rates)


def main() -> None:
    options = arguments(__doc__)
    use_trainer_process_settings()
    numbers, repeats = (NUM_FIELDS[:2], 2) if options.quick else (NUM_FIELDS, 7)
    cases = [measure(num_fields, repeats) for num_fields in numbers]
    report("train.fields", cases, options, packages=("torch", "numba", "numpy"))
