"""quality.multitask: nets for several labels beside one net a label, on movielens-100k (rating >= 4, rating = 5).

`springtide bench quality.multitask [--seeds 0,1] [--wide off,on] [--nets MMoE,PLE]` learns the log once with each net,
in row order, and prints AUC and logloss of each label: every sample is scored before it is learned. Standard errors of
the differences to one net a label by DeLong. Names the log and exits if it is absent.
"""

# N samples, L labels
import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet
import torch

from springtide.app.models.config import ModelConfig
from springtide.app.models.losses.config import LabelLoss
from springtide.app.scores.auc import click_auc
from springtide.app.tools.evaluate.scores import difference_error
from springtide.stream.columns import Batch
from tests.bench.harness.report import DATA, argument_parser, describe_run, save
from tests.bench.quality.one_pass import RunConfig, learn_labels
from tests.bench.quality.real_logs import SETS, read_batch
from tests.support.batches import cut

LOG = "movielens-100k"
LABELS = ("liked", "loved")  # rating >= 4, rating = 5: the second only where the first
ALONE = "one net a label"
PACKAGES = ("numpy", "numba", "torch")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Contender:
    """A net and how its labels are weighed."""

    name: str
    net: str = "shared_bottom"
    options: tuple[tuple[str, Any], ...] = ()
    alone: bool = False  # each label is learned by a net and a table of its own
    task_weights: str = "fixed"
    losses: tuple[LabelLoss, ...] = ()


CONTENDERS = (
    Contender(ALONE, alone=True),
    Contender("one DLRM a label", "dlrm", alone=True),
    Contender("DLRM of both", "dlrm"),
    Contender("shared bottom"),
    Contender("MMoE", "mmoe"),
    Contender("PLE", "ple"),
    Contender("ESMM", "esmm"),
    Contender("MMoE by uncertainty", "mmoe", task_weights="uncertainty"),
    Contender("shared bottom focal", losses=(LabelLoss(name="focal"),) * 2),
    Contender("shared bottom pairwise", losses=(LabelLoss(name="pairwise"),) * 2),
    Contender("shared bottom pairwise by user", losses=(LabelLoss(name="pairwise", group=0),) * 2),
    Contender("shared bottom listwise by user", losses=(LabelLoss(name="listwise", group=0),) * 2),
)


def read_labels(folder: Path, most: int) -> Batch:
    """Return the log with two labels, made of the rating."""
    samples = cut(read_batch(folder, SETS[LOG]), 0, most)
    rating_N = pyarrow.parquet.read_table(folder / f"{LOG}.parquet", columns=["rating"])["rating"].to_numpy()[:most]
    return replace(samples, labels_NL=np.stack([rating_N >= 4, rating_N >= 5], axis=1).astype(np.float32))


def learn(contender: Contender, samples: Batch, seed: int, *, wide: bool) -> tuple[Floats, float]:
    """Return a logit for each sample and label, and the processor seconds it took."""
    schema = replace(SETS[LOG].schema, labels=LABELS)
    config = RunConfig(
        schema=schema,
        model=ModelConfig(name=contender.net, options=dict(contender.options), wide=wide),
        losses=contender.losses,
    ).with_train(seed=seed, task_weights=contender.task_weights)
    began = time.process_time()
    if contender.alone:
        columns = [
            learn_labels(
                replace(config, schema=replace(schema, labels=(label,))),
                replace(samples, labels_NL=samples.labels_NL[:, number : number + 1]),
            )
            for number, label in enumerate(LABELS)
        ]
        logits_NL = np.concatenate(columns, axis=1)
    else:
        logits_NL = learn_labels(config, samples)
    return logits_NL, time.process_time() - began


def cases_of(samples: Batch, contenders: list[Contender], seed: int, *, wide: bool) -> Iterator[dict[str, Any]]:
    """Yield the scores of each contender, one net a label first."""
    baseline: Floats | None = None
    for contender in contenders:
        logits_NL, seconds = learn(contender, samples, seed, wide=wide)
        baseline = logits_NL if baseline is None else baseline
        case: dict[str, Any] = {
            "contender": contender.name,
            "wide": wide,
            "seed": seed,
            "microseconds_a_sample": 1e6 * seconds / len(samples),
        }
        for number, label in enumerate(LABELS):
            positive_N = samples.labels_NL[:, number].astype(np.float64)
            ours_N, theirs_N = logits_NL[:, number], baseline[:, number]
            auc, alone = click_auc(ours_N, positive_N > 0.5), click_auc(theirs_N, positive_N > 0.5)
            assert auc is not None
            assert alone is not None
            case[label] = {
                "auc": auc,
                "logloss": float(np.mean(np.logaddexp(0.0, ours_N) - positive_N * ours_N)),
                "auc_minus_alone": auc - alone,
                "auc_minus_alone_error": difference_error(ours_N, theirs_N, positive_N, 1 - positive_N),
            }
        yield case


def describe(case: dict[str, Any]) -> str:
    """Return one line."""
    parts = [f"{case['contender']:30} wide {'on ' if case['wide'] else 'off'} seed {case['seed']}"]
    for label in LABELS:
        each = case[label]
        parts.append(
            f"{label}: AUC {each['auc']:.4f} ({each['auc_minus_alone']:+.4f}, "
            f"s.e. {each['auc_minus_alone_error'] or 0:.4f}) logloss {each['logloss']:.4f}"
        )
    return "  ".join([*parts, f"{case['microseconds_a_sample']:,.0f} us/sample"])


def table(cases: list[dict[str, Any]]) -> str:
    """Return the table of deploy/docs/decisions/models.md: means over the seeds."""
    lines = ["| net | wide part | " + " | ".join(f"{label}: AUC | logloss" for label in LABELS) + " | CPU us/sample |"]
    lines.append("|---|---|" + "---:|" * (2 * len(LABELS) + 1))
    for wide, name in dict.fromkeys((case["wide"], case["contender"]) for case in cases):
        own = [case for case in cases if (case["wide"], case["contender"]) == (wide, name)]
        cells = [name, "on" if wide else "off"]
        for label in LABELS:
            aucs = [case[label]["auc"] for case in own]
            logloss = float(np.mean([case[label]["logloss"] for case in own]))
            cells += [" ".join(f"{auc:.4f}" for auc in aucs), f"{logloss:.4f}"]
        cells.append(f"{np.median([case['microseconds_a_sample'] for case in own]):,.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Return the arguments."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--wide", default="off,on", help="without the wide part, with it, or both")
    parser.add_argument("--nets", default="", help=f"of {', '.join(each.name for each in CONTENDERS)}; default: all")
    parser.add_argument("--samples", type=int, default=100_000, help="at most")
    parser.add_argument("--data", type=Path, default=DATA, help="where the log's .parquet file is")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    if not (options.data / f"{LOG}.parquet").is_file():
        print(f"skipped: {LOG}, {options.data} does not have it", flush=True)
        return
    samples = read_labels(options.data, 1_000 if options.quick else options.samples)
    run = describe_run("quality.multitask", options, packages=PACKAGES)
    named = options.nets.split(",") if options.nets else [each.name for each in CONTENDERS]
    contenders = [each for each in CONTENDERS if each.name in {ALONE, *named}]
    cases = []
    for wide in options.wide.split(","):
        for seed in map(int, options.seeds.split(",")):
            for case in cases_of(samples, contenders, seed, wide=wide == "on"):
                print(describe(case), flush=True)
                cases.append(case)
    print(table(cases), flush=True)
    save(options, run | {"cases": cases})
