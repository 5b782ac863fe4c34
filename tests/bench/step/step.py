"""step: fixed cost of Learner.step and its cost of a sample, on one thread, by batch size from 1 to 4,096.

Four cases on warm tables with the wide part on: two ids with the default net; the clicks of `springtide simulate`;
26 ids and 13 numbers with DLRM-small; two ids with a net of the user's own, beside its own forward, backward and Adam
in plain torch. A cost is the processor's time of a step, so that a neighbour on the machine does not count; the
straight line through the medians has the least squares of relative errors. What is asked of the fixed cost is compared
with the line through batches of 1 to 64 alone: there a sample costs more than in large batches.

`--before PATH` measures another checkout in turn with this one, chunk by chunk. `--profile CASE BATCH` prints instead
where steps of a case spend their time.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.bench.harness.processes import PEER_SCRIPTS, ContenderProcess, checkout_environment
from tests.bench.harness.report import (
    Case,
    argument_parser,
    describe_case,
    describe_run,
    fail,
    save,
    use_trainer_process_settings,
)

ROOT = Path(__file__).parents[3]
# batch: steps of a chunk
STEPS = {1: 64, 4: 64, 16: 64, 64: 24, 256: 8, 1024: 3, 4096: 2}
QUICK_STEPS = {1: 4, 16: 4, 64: 2}
SMALL = (1, 4, 16, 64)  # batches whose fixed cost has a target
NUM_SAMPLES, QUICK_SAMPLES = 16_384, 1024
TOLERANCE = 0.1  # of the mean difference of logits, of which the two checkouts may compute some in another precision


@dataclass(frozen=True)
class Asked:
    """A case and what it may cost beside its samples, in ms of a step."""

    case: str
    text: str
    most_ms: float | None = None
    most_beside_plain_ms: float | None = None


CASES = (
    Asked("two_ids", "two ids, default net", most_ms=0.5),
    Asked("simulator", "the simulator's eight ids, tags and two numbers", most_ms=1.0),
    Asked("dlrm_small", "26 ids and 13 numbers, DLRM-small"),
    Asked("own_net", "a net of the user's own over two ids", most_beside_plain_ms=1.5),
)


def contender(checkout: Path) -> ContenderProcess:
    """Start a process that imports a checkout."""
    command = [sys.executable, str(PEER_SCRIPTS / "step_peer.py")]
    return ContenderProcess(str(checkout), command, checkout_environment(checkout), None)


class Contest:
    """One case, measured in chunks: every contender has its turn at every batch size, and again."""

    def __init__(self, asked: Asked, processes: dict[str, ContenderProcess], options: argparse.Namespace) -> None:
        self.asked, self.processes = asked, processes
        self.steps = QUICK_STEPS if options.quick else STEPS
        self.num_samples = QUICK_SAMPLES if options.quick else NUM_SAMPLES
        self.runs = {name: (process, "learn") for name, process in processes.items()}
        if asked.most_beside_plain_ms is not None:
            self.runs["plain torch"] = (processes["ours"], "learn_plain")
        # seconds of a step, of the processor, by contender and batch
        self.costs: dict[str, dict[int, list[float]]] = {name: {size: [] for size in self.steps} for name in self.runs}

    def compare(self) -> None:
        """Fail unless all score the samples alike."""
        with tempfile.TemporaryDirectory(prefix="step-") as folder:
            logits = {}
            for name, process in self.processes.items():
                path = f"{folder}/{len(logits)}.npy"
                process.call("first_logits", case=self.asked.case, num_samples=self.num_samples, path=path)
                logits[name] = np.load(path)
        for name, logits_N in logits.items():
            if not np.isfinite(logits_N).all() or np.abs(logits_N - logits["ours"]).mean() > TOLERANCE:
                fail(f"{self.asked.case}: {name} has other scores")

    def run(self, rounds: int) -> None:
        """Measure; the first round warms up."""
        for number in range(rounds + 1):
            for size, num in self.steps.items():
                for name, (process, function) in self.runs.items():
                    seconds = process.call(
                        function, case=self.asked.case, num_samples=self.num_samples, size=size, num=num
                    )
                    if number:
                        self.costs[name][size].append(seconds["cpu_seconds"] / num)

    def cases(self) -> list[Case]:
        """Return a comparison in steps a second for each batch."""

        def rates(name: str, size: int) -> list[float]:
            return [1 / seconds for seconds in self.costs[name][size]]

        peers = [name for name in self.processes if name != "ours"]
        return [
            Case(
                f"{self.asked.text}, batch {size}",
                "steps/s of one core",
                rates("ours", size),
                {name: rates(name, size) for name in peers},
            )
            for size in self.steps
        ]

    def lines(self) -> list[dict[str, Any]]:
        """Return of each contender the lines through its costs, of all batches and of small ones."""
        found = []
        for name, costs in self.costs.items():
            ms_B = {size: 1000 * median(seconds) for size, seconds in costs.items()}
            fixed_ms, sample_ms = fit(ms_B)
            small_fixed_ms, small_sample_ms = fit({size: ms for size, ms in ms_B.items() if size in SMALL})
            found.append(
                {
                    "case": self.asked.case,
                    "contender": name,
                    "fixed_ms": fixed_ms,
                    "sample_us": 1000 * sample_ms,
                    "small_fixed_ms": small_fixed_ms,
                    "small_sample_us": 1000 * small_sample_ms,
                    "step_ms": ms_B,
                }
            )
        return found

    def describe(self) -> list[str]:
        """Return the lines as text, with what is asked."""
        texts, lines = [], {line["contender"]: line for line in self.lines()}
        for name, line in lines.items():
            steps = ", ".join(f"{size}: {ms:.3g}" for size, ms in line["step_ms"].items())
            texts.append(
                f"{self.asked.text}, {name}: {line['fixed_ms']:.2f} ms and {line['sample_us']:.1f} us a sample, "
                f"{line['small_fixed_ms']:.2f} and {line['small_sample_us']:.1f} up to batches of 64; "
                f"ms of a step by batch: {steps}"
            )
        if self.asked.most_ms is not None:
            texts.append(verdict("fixed at batches of 1 to 64", lines["ours"]["small_fixed_ms"], self.asked.most_ms))
        if self.asked.most_beside_plain_ms is not None:
            ours, plain = lines["ours"]["step_ms"], lines["plain torch"]["step_ms"]
            found = max(ours[size] - plain[size] for size in SMALL if size in ours)
            texts.append(verdict("beside its own net at batches of 1 to 64", found, self.asked.most_beside_plain_ms))
        return texts


def fit(ms_B: dict[int, float]) -> tuple[float, float]:
    """Return the fixed cost and the cost of a sample that fit best, by relative errors."""
    sizes_B, costs_B = np.array(list(ms_B), np.float64), np.array(list(ms_B.values()))
    lines_B2 = np.stack([1 / costs_B, sizes_B / costs_B], axis=1)
    fixed, sample = np.linalg.lstsq(lines_B2, np.ones(len(costs_B)), rcond=None)[0]
    return float(fixed), float(sample)


def verdict(what: str, found: float, asked: float) -> str:
    return f"  {what}: {found:.2f} ms of at most {asked:g} asked: {'reached' if found <= asked else 'not reached'}"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--cases", default=",".join(asked.case for asked in CASES), help="default: all")
    parser.add_argument("--rounds", type=int, help="of chunks; more are steadier")
    parser.add_argument("--profile", nargs=2, metavar=("CASE", "BATCH"), help="where its steps spend their time")
    options = parser.parse_args()
    use_trainer_process_settings()
    processes = {"ours": contender(ROOT)}
    if options.profile:
        case, size = options.profile
        print(processes["ours"].call("profile", case=case, num_samples=NUM_SAMPLES, size=int(size), num=200))
        return
    if options.before:
        processes["before"] = contender(options.before.resolve())
    document = describe_run("step", options, packages=("torch", "numba", "numpy"))
    cases: list[Case] = []
    lines: list[dict[str, Any]] = []
    chosen = options.cases.split(",")
    for asked in (asked for asked in CASES if asked.case in chosen):
        contest = Contest(asked, processes, options)
        contest.compare()
        contest.run(options.rounds or (1 if options.quick else 5))
        for case in contest.cases():
            print(describe_case(case))
        print("\n".join(contest.describe()), flush=True)
        cases, lines = cases + contest.cases(), lines + contest.lines()
    for process in processes.values():
        process.close()
    save(options, document | {"cases": [asdict(case) for case in cases], "lines": lines})
