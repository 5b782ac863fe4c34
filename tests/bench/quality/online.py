"""quality.online: progressive AUC and logloss, one pass over each log, beside other online learners and ablations.

`springtide bench quality.online [--logs movielens-100k,simulated] [--parts peers,wide,ablations] [--samples N]`. One
setting of ours, the defaults, for all logs. Vowpal Wabbit (30 settings) and River learn the same samples in the same
order; of VW the best single setting over all logs is named, and the best of each log, which is picked afterwards. Logs
that are not there are skipped; the defaults were not chosen on `simulated-completejourney-end`, `nyc-flights` and
`phishing`. Standard errors by DeLong, of differences too: they take the samples as independent.
"""

# N samples
import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from springtide.app.scores.auc import click_auc
from springtide.app.tools.evaluate.scores import difference_error, standard_error
from springtide.stream.columns import Batch
from springtide_client.schema import Schema
from tests.bench.harness.peer_process import Peers
from tests.bench.harness.report import DATA, argument_parser, describe_run, save
from tests.bench.quality.contenders import (
    DAY_MS,
    RIVER,
    Log,
    Result,
    ablations,
    every,
    every_ms,
    save_for_peers,
    vw_settings,
    wide_part_on_and_off,
)
from tests.bench.quality.one_pass import Floats, OnePass, RunConfig, learn_once, logloss
from tests.bench.quality.packaged_logs import PACKAGED, VENV, read_csv, write_csv
from tests.bench.quality.real_logs import SETS, UNSEEN, read_batch
from tests.bench.quality.simulated_log import simulate_log, simulated_schema
from tests.bench.quality.world_filter import filtered_logits
from tests.support.batches import cut

OURS = "Springtide"
SIMULATED = "simulated"
TRUTH = "the true probabilities"
SIMULATED_SAMPLES = 360_000  # two minutes of event time: a half-life of the preferences
MOST_SAMPLES = 100_000  # of a real log
QUICK_SAMPLES = 1_500
WINDOW = 20_000  # samples, as in the status; of simulated clicks 6.7 s
AFTER = 160_000  # the window that ends when the demo is 60 s old begins here
VENV_OF = {"VW": VENV, "River": VENV}
REAL = SETS | UNSEEN
LOGS = [*REAL, *PACKAGED, SIMULATED]
PACKAGES = ("numpy", "numba", "torch")


def defaults(schema: Schema) -> RunConfig:
    """Return our default settings on the CPU, where `[model] wide` = "auto" means true."""
    return RunConfig(schema=schema).with_model(wide=True)


def read_real(name: str, folder: Path, venvs: Path) -> tuple[Schema, Batch] | None:
    """Return the schema and the samples of a log that is not simulated by us; None if it is not there."""
    if name in PACKAGED:
        with tempfile.TemporaryDirectory(prefix="packaged-") as written:
            schema, path = PACKAGED[name].schema, write_csv(name, venvs, Path(written))
            return None if path is None else (schema, read_csv(path, schema))
    real = REAL[name]
    return (real.schema, read_batch(folder, real)) if (folder / f"{real.file}.parquet").is_file() else None


def read_logs(
    names: list[str], folder: Path, venvs: Path, most: int, *, quick: bool
) -> Iterator[tuple[Log, dict[str, Floats]]]:
    """Yield the logs, and of the simulated one the logits of who knows more. Names those that are absent."""
    for name in names:
        if name == SIMULATED:
            samples, probability_N = simulate_log(QUICK_SAMPLES if quick else SIMULATED_SAMPLES)
            bests = {
                TRUTH: np.log(probability_N) - np.log1p(-probability_N),
                "a filter that knows the world": filtered_logits(len(samples)),
            }
            event_ms_N = samples.event_ms_N
            schedules = {f"versions every {s} s": every_ms(1000 * s, event_ms_N) for s in (1, 10, 60)}
            yield Log(name, defaults(simulated_schema()), samples, schedules), bests
        elif (found := read_real(name, folder, venvs)) is None:
            print(f"skipped: {name}, {folder if name in REAL else venvs / VENV} does not have it", flush=True)
        else:
            schema, whole = found
            samples = cut(whole, 0, most)
            schedules = {f"versions every {k:,} samples": every(k, len(samples)) for k in (256, 4096)}
            schedules["trained in daily batches"] = every_ms(DAY_MS, samples.event_ms_N)
            yield Log(name, defaults(schema), samples, schedules), {}


def run_peers(log: Log, peers: Peers, folder: Path, *, quick: bool) -> Iterator[Result]:
    """Let VW and River learn the log, in a process of their own; passes that `folder` keeps are not repeated."""
    if not peers.installed:
        return
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        name: ("vw", {"options": options}) for name, options in vw_settings(log.num_fields, quick=quick)
    }
    for model, rate in RIVER[:1] if quick else RIVER:
        calls[f"River {model} {rate:g}"] = ("river", {"model": model, "rate": rate})
    has_read = False
    for name, (function, settings) in calls.items():
        kept = folder / f"{log.name} {len(log.samples)} {name}.npz"
        if not kept.exists():
            if not has_read:
                peers.call_all("read", folder=save_for_peers(log, folder / f"{log.name} {len(log.samples)}"))
                has_read = True
            path = folder / "logits.npy"
            answer = peers.installed["VW"].call(function, **settings, path=str(path))
            np.savez(kept, logits=np.load(path), seconds=answer["seconds"])
        with np.load(kept) as arrays:
            yield Result(name, OnePass(arrays["logits"], float(arrays["seconds"])))


def case_of(log: Log, result: Result, ours: OnePass, truth_N: Floats | None = None) -> dict[str, Any]:
    """Return a contender's scores, and how far it is from ours on the same samples, and from the truth if known."""
    scored = slice(result.first, None)
    clicked_N, logits_N, ours_N = log.clicked_N[scored], result.run.logits_N[scored], ours.logits_N[scored]
    positive_N, negative_N = clicked_N.astype(np.float64), (~clicked_N).astype(np.float64)
    auc, our_auc = click_auc(logits_N, clicked_N), click_auc(ours_N, clicked_N)
    loss, our_loss = logloss(logits_N, clicked_N), logloss(ours_N, clicked_N)
    known = auc is not None and our_auc is not None
    return {
        "log": log.name,
        "contender": result.contender,
        "first_sample": result.first,
        "samples": len(logits_N),
        "auc": auc,
        "auc_error": standard_error(logits_N, positive_N, negative_N),
        "logloss": loss,
        "auc_minus_ours": auc - our_auc if known else None,
        "auc_minus_ours_error": difference_error(logits_N, ours_N, positive_N, negative_N),
        "logloss_minus_ours": loss - our_loss,
        "samples_per_second": len(result.run.logits_N) / result.run.seconds,
        "shares_of_best": None if truth_N is None else shares_of_best(result.run.logits_N, truth_N, log.clicked_N),
    }


def shares_of_best(logits_N: Floats, truth_N: Floats, clicked_N: np.ndarray) -> list[float]:
    """Return of each window how much of the way from 0.5 to the best AUC that there is was made."""
    shares = []
    for start in range(0, len(logits_N) - WINDOW + 1, WINDOW):
        window = slice(start, start + WINDOW)
        auc, best = (click_auc(each_N[window], clicked_N[window]) or 0.5 for each_N in (logits_N, truth_N))
        shares.append((auc - 0.5) / (best - 0.5) if best > 0.5 else 1.0)
    return shares


def describe(case: dict[str, Any]) -> str:
    """Return one line."""

    def number(value: float | None, pattern: str) -> str:
        return "-" if value is None else format(value, pattern)

    shares = case["shares_of_best"] or []
    way = f"; after 60 s {shares[AFTER // WINDOW]:.3f} of the way to the best" if len(shares) > AFTER // WINDOW else ""
    since = f" from sample {case['first_sample']:,} on" if case["first_sample"] else ""
    return (
        f"{case['log']:25} {case['contender']:36} AUC {number(case['auc'], '.4f')} "
        f"(s.e. {number(case['auc_error'], '.4f')})  logloss {case['logloss']:.4f}  minus ours: "
        f"{number(case['auc_minus_ours'], '+.4f')} (s.e. {number(case['auc_minus_ours_error'], '.4f')}), "
        f"{case['logloss_minus_ours']:+.4f}{since}; {case['samples_per_second']:,.0f} samples/s{way}"
    )


def best_of_vw(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return VW's best single setting, by its mean over the logs of AUC and of logloss, and the best of each log."""
    vw = [case for case in cases if case["contender"].startswith("VW ") and case["auc"] is not None]
    logs = list(dict.fromkeys(case["log"] for case in vw))
    if not logs:
        return {}

    def mean(setting: str, score: str) -> float:
        return float(np.mean([case[score] for case in vw if case["contender"] == setting]))

    settings = list(dict.fromkeys(case["contender"] for case in vw))
    per_log = {
        log: {
            "auc": max((case for case in vw if case["log"] == log), key=lambda case: case["auc"])["contender"],
            "logloss": min((case for case in vw if case["log"] == log), key=lambda case: case["logloss"])["contender"],
        }
        for log in logs
    }
    return {
        "single": {
            "auc": max(settings, key=lambda setting: mean(setting, "auc")),
            "logloss": min(settings, key=lambda setting: mean(setting, "logloss")),
        },
        "per_log": per_log,
    }


def arguments() -> argparse.Namespace:
    """Return the arguments, checked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--logs", default=",".join(LOGS))
    parser.add_argument("--parts", default="peers,wide,ablations", help="what to run beside our defaults")
    parser.add_argument("--samples", type=int, default=MOST_SAMPLES, help="of a real log, at most")
    parser.add_argument("--keep", type=Path, help="keep the peers' logits in this folder, and use those it has")
    parser.add_argument("--data", type=Path, default=DATA, help="where the logs' .parquet files are")
    options = parser.parse_args()
    options.logs, options.parts = options.logs.split(","), options.parts.split(",")
    for name in options.logs:
        if name not in LOGS:
            parser.error(f"no log {name!r}: there are {', '.join(LOGS)}")
    return options


def learn_log(
    log: Log, bests: dict[str, Floats], parts: list[str], peers: Peers, folder: Path, *, quick: bool
) -> Iterator[dict[str, Any]]:
    """Yield the case of each contender, ours first."""
    ours = learn_once(log.config, log.samples)
    results = [iter([Result(OURS, ours)])]
    results.append(Result(name, OnePass(logits_N, float("inf"))) for name, logits_N in bests.items())
    if "peers" in parts:
        results.append(run_peers(log, peers, folder, quick=quick))
    if "wide" in parts:
        results.append(wide_part_on_and_off(log))
    if "ablations" in parts:
        results.append(ablations(log))
    for result in chain.from_iterable(results):
        yield case_of(log, result, ours, bests.get(TRUTH))


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    quick, venv_of = options.quick, VENV_OF if "peers" in options.parts else {}
    cases: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="online-")))
        folder.mkdir(parents=True, exist_ok=True)
        peers = stack.enter_context(Peers(venv_of, venvs=options.peers, threads=1))
        run = describe_run("quality.online", options, packages=PACKAGES, peers=peers.versions)
        most = QUICK_SAMPLES if quick else options.samples
        for log, bests in read_logs(options.logs, options.data, options.peers, most, quick=quick):
            for case in learn_log(log, bests, options.parts, peers, folder, quick=quick):
                cases.append(case)
                print(describe(case), flush=True)
    best = best_of_vw(cases)
    print(json.dumps({"best of VW": best}, indent=1))
    save(options, run | {"best_of_vw": best, "cases": cases})
