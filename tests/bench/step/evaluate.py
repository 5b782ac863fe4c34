"""step.evaluate: `springtide evaluate` of 40,000 rows with two fields in batches of 16, beside VW on the same samples.

Nothing in it is large, so it takes what 2,500 steps take beside their samples. Start-up, which a run of the first 16
rows takes, is left out; VW reads its own text format, learns sample by sample, and crosses the fields (`-q ::`).
Rates are by the processor's time and by the clock. `--before PATH` evaluates with another checkout in turn.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from springtide.stream.columns import Batch
from springtide_client.features import Features
from springtide_client.schema import Schema
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.processes import checkout_environment
from tests.bench.harness.report import Case, argument_parser, describe_case, describe_run, fail, save
from tests.bench.quality.contenders import Log, save_for_peers
from tests.bench.quality.one_pass import RunConfig
from tests.bench.workloads.clicks import zipf_ids
from tests.support.batches import batch_of
from tests.support.config import Section, write_config

ROOT = Path(__file__).parents[3]
ROWS, QUICK_ROWS, BATCH = 40_000, 2_000, 16
ASKED_SECONDS = 5.0  # beyond start-up
MOST_AUC_APART = 0.0005
VW = "VW -q ::"
SCHEMA = Schema(labels=("click",), categorical=("user_id", "item_id"))
SETTINGS: Section = {
    "name": "evaluate",
    "source": {"topic": "clicks"},
    "schema": {"label": "click", "categorical": list(SCHEMA.categorical)},
    "table": {"device_bytes": "256MiB"},
    "train": {"batch_size": BATCH, "threads": 1},
}


@dataclass
class Times:
    """Seconds of a contender's runs: on the clock, and of the processor."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, clock: float, processor: float) -> None:
        self.clock.append(clock)
        self.processor.append(processor)

    def beyond(self, start_up: "Times") -> "Times":
        """Return the seconds without those of the median start-up."""
        clock, processor = median(start_up.clock), median(start_up.processor)
        return Times([seconds - clock for seconds in self.clock], [seconds - processor for seconds in self.processor])


def make_samples(num: int) -> Batch:
    """Return samples whose label depends on both ids."""
    random = np.random.default_rng(0)
    ids_NC = zipf_ids(random, (num, 2))
    lean_N = np.sin(ids_NC[:, 0] * 1.7) + np.cos(ids_NC[:, 1] * 0.9) - 1.0
    features = Features(ids_NC, (), np.zeros((num, 0), np.float32))
    return batch_of(features, random.random(num) < 1 / (1 + np.exp(-lean_N)))


def write_rows(path: Path, samples: Batch) -> None:
    """Write the samples as JSON lines."""
    columns = [*samples.features.categorical_NC.T.tolist(), samples.labels_NL[:, 0].astype(int).tolist()]
    names = (*SCHEMA.categorical, "click")
    lines = (json.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))
    path.write_text("".join(f"{line}\n" for line in lines))


def evaluate(checkout: Path, folder: Path, *options: str) -> tuple[float, float, dict[str, Any]]:
    """Run the command; return its seconds on the clock and of the processor, and its document."""
    command = [sys.executable, "-m", "springtide", "evaluate", "rows.jsonl", "--json", *options]
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=checkout_environment(checkout), capture_output=True, text=True, check=False
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        fail(f"evaluate of {checkout} failed: {done.stderr[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, json.loads(done.stdout)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--before", type=Path, help="another checkout, which evaluates in turn with this one")
    options = parser.parse_args()
    repeats, rows = (1, QUICK_ROWS) if options.quick else (3, ROWS)
    checkouts = {"ours": ROOT} | ({"before": options.before.resolve()} if options.before else {})
    samples, aucs = make_samples(rows), dict[str, float]()
    with (
        tempfile.TemporaryDirectory(prefix="evaluate-") as folder,
        Peers({VW: "online"}, venvs=options.peers, threads=1) as peers,
    ):
        document = describe_run("step.evaluate", options, packages=("torch", "numba", "numpy"), peers=peers.versions)
        write_rows(Path(folder) / "rows.jsonl", samples)
        write_config(Path(folder) / "springtide.toml", SETTINGS)
        peers.call_all(
            "read", folder=save_for_peers(Log("two ids", RunConfig(schema=SCHEMA), samples, {}), Path(folder))
        )
        times = {name: Times() for name in (*checkouts, *peers.installed)}
        start_ups = {name: Times() for name in checkouts}
        for checkout in checkouts.values():
            evaluate(checkout, Path(folder), "--limit", str(BATCH))  # compiles
        for _ in range(repeats):
            for name, checkout in checkouts.items():
                start_ups[name].add(*evaluate(checkout, Path(folder), "--limit", str(BATCH))[:2])
                *seconds, report = evaluate(checkout, Path(folder))
                times[name].add(*seconds)
                aucs[name] = report["scores"]["whole"]["auc"]
            for name, peer in peers.installed.items():
                answer = peer.call("vw", options="-q ::", path=str(Path(folder) / "logits.npy"))
                times[name].add(answer["seconds"], answer["cpu_seconds"])
    if any(abs(auc - aucs["ours"]) > MOST_AUC_APART for auc in aucs.values()):
        fail(f"AUC {aucs}")
    times |= {name: times[name].beyond(start_up) for name, start_up in start_ups.items()}
    cases = [
        Case(
            f"{rows:,} rows, batch {BATCH}, {what}",
            "samples/s",
            [rows / seconds for seconds in getattr(times["ours"], key)],
            {name: [rows / s for s in getattr(each, key)] for name, each in times.items() if name != "ours"},
        )
        for key, what in (("processor", "by the processor's time"), ("clock", "by the clock"))
    ]
    for case in cases:
        print(describe_case(case))
    for name, each in times.items():
        auc = f"; AUC {aucs[name]:.4f}" if name in aucs else ""
        clock, processor = median(each.clock), median(each.processor)
        print(f"{name}: {processor:.2f} s of the processor beyond start-up, {clock:.2f} s on the clock{auc}")
    print(f"at most {ASKED_SECONDS:g} s asked")
    save(options, document | {"cases": [asdict(case) for case in cases], "aucs": aucs})
