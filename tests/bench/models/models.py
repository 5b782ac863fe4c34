"""models: quality and cost of every built-in ranking net, with and without the wide part, one pass over each log.

`springtide bench models [--logs movielens-100k,simulated] [--nets dcn,autoint] [--samples N]` prints AUC, logloss and
processor microseconds a sample as a table in Markdown, `--out PATH` writes JSON. Every net has the default options and
settings, except that `ffm` has rows of 4 numbers a field. Each sample is scored before it is learned. Logs that are
not there are skipped, and nets that a log cannot feed, such as a net for several labels on one label, are named.
"""

# N samples
import argparse
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.models.wide_part import add_wide_part
from springtide.app.scores.auc import click_auc
from springtide.app.tools.evaluate.scores import standard_error
from tests.bench.harness.report import DATA, argument_parser, describe_run, save
from tests.bench.quality.contenders import Log
from tests.bench.quality.one_pass import RunConfig, learn_once, logloss
from tests.bench.quality.online import SIMULATED, read_logs
from tests.bench.quality.real_logs import SETS
from tests.support.batches import cut
from tests.support.model_variants import VARIANTS

MOST_SAMPLES = 20_000  # of a log
QUICK_SAMPLES, QUICK_NETS = 300, ("dlrm", "ffm", "esmm")
WARM_UP_SAMPLES = 200
FFM_NUMBERS = 4  # of a row, for each field


def config_for(log: Log, net: ModelConfig, *, wide: bool) -> RunConfig:
    """Return the defaults with this net."""
    model = structs.replace(net, wide=wide)
    config = log.config.with_model(**{name: getattr(model, name) for name in ("name", "options", "wide")})
    if net.name == "ffm":
        dim = FFM_NUMBERS * len(log.config.schema.features)
        config = RunConfig(schema=config.schema, model=config.model, table=structs.replace(config.table, dim=dim))
    return config


def num_parameters(config: RunConfig) -> int:
    """Return the numbers that the net itself learns; ValueError if it does not fit the log."""
    model = build_model(config.model, ModelSpec.of(config.schema, config.table.dim), seed=0)
    add_wide_part(model, structs.replace(config.model, crosses=0), config.schema)
    return sum(parameter.numel() for parameter in model.parameters())


def learn_log(log: Log, nets: list[str], warm: set[bool]) -> Iterator[dict[str, Any]]:
    """Yield a case for each net, without and with the wide part."""
    positive_N, negative_N = log.clicked_N.astype(np.float64), (~log.clicked_N).astype(np.float64)
    for wide in (False, True):
        for name in nets:
            config = config_for(log, VARIANTS[name], wide=wide)
            try:
                parameters = num_parameters(config)
            except ValueError as error:
                print(f"left out: {name} on {log.name}: {error}", flush=True)
                continue
            if wide not in warm:  # compiles the kernels
                learn_once(config, cut(log.samples, 0, WARM_UP_SAMPLES))
                warm.add(wide)
            began = time.process_time()
            run = learn_once(config, log.samples)
            seconds = time.process_time() - began
            yield {
                "log": log.name,
                "net": name,
                "wide": wide,
                "samples": len(log.samples),
                "dim": config.table.dim,
                "parameters": parameters,
                "auc": click_auc(run.logits_N, log.clicked_N),
                "auc_error": standard_error(run.logits_N, positive_N, negative_N),
                "logloss": logloss(run.logits_N, log.clicked_N),
                "processor_us_a_sample": 1e6 * seconds / len(log.samples),
            }


def tables(cases: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table for each log: a net a line."""
    for log, of_log in groupby(cases, key=lambda case: case["log"]):
        found = list(of_log)
        error = max(case["auc_error"] or 0 for case in found)
        yield f"\n**{log}**, {found[0]['samples']:,} samples; standard error of an AUC at most {error:.4f}\n"
        yield "| net | parameters | AUC | logloss | us a sample | with the wide part: AUC | logloss | us a sample |"
        yield "|---|---|---|---|---|---|---|---|"
        for name in dict.fromkeys(case["net"] for case in found):
            by_wide = {case["wide"]: case for case in found if case["net"] == name}
            parameters = max(case["parameters"] for case in by_wide.values())
            parts = [describe(by_wide.get(wide)) for wide in (False, True)]
            yield f"| {name} | {parameters:,} | {' | '.join(parts)} |"


def describe(case: dict[str, Any] | None) -> str:
    """Return the three columns of a case."""
    if case is None:
        return "- | - | -"
    auc = "-" if case["auc"] is None else f"{case['auc']:.4f}"
    return f"{auc} | {case['logloss']:.4f} | {case['processor_us_a_sample']:.0f}"


def arguments() -> argparse.Namespace:
    """Return the arguments, checked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--logs", default=",".join([*SETS, SIMULATED]))
    parser.add_argument("--nets", help="default: all")
    parser.add_argument("--samples", type=int, default=MOST_SAMPLES, help="of a log, at most")
    parser.add_argument("--data", type=Path, default=DATA, help="where the logs' .parquet files are")
    options = parser.parse_args()
    options.logs = options.logs.split(",")
    options.nets = options.nets.split(",") if options.nets else list(QUICK_NETS if options.quick else VARIANTS)
    for name, known in [*((n, [*SETS, SIMULATED]) for n in options.logs), *((n, list(VARIANTS)) for n in options.nets)]:
        if name not in known:
            parser.error(f"no {name!r}: there are {', '.join(known)}")
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    run = describe_run("models", options, packages=("numpy", "numba", "torch"))
    most = QUICK_SAMPLES if options.quick else options.samples
    cases: list[dict[str, Any]] = []
    warm: set[bool] = set()
    for whole, _ in read_logs(options.logs, options.data, options.peers, most, quick=options.quick):
        log = Log(whole.name, whole.config, cut(whole.samples, 0, most), {})
        of_log = list(learn_log(log, options.nets, warm))
        print("\n".join(tables(of_log)), flush=True)
        cases += of_log
        save(options, run | {"cases": cases})
