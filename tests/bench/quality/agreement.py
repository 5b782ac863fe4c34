"""quality.agreement: the same log with the default settings by `springtide evaluate` and through Kafka to a trainer.

`springtide bench quality.agreement [--logs movielens-100k,...] [--samples N]`: replays a log into the embedded broker,
trains until its end and reads the scores of the status; evaluates the same rows without a broker. AUC and logloss must
be within 0.001 of each other, else exit 1. Batches that wait at most `max_wait_seconds` depend on the machine: on a
busy one some are cut short, so the two need not be equal. Logs that are not there are skipped.
"""

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from springtide.app.config.load import load_config
from springtide.app.tools.evaluate.report import evaluate_files
from springtide.app.tools.replay import Replay, ReplayConfig
from springtide.app.training.trainer import Trainer
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.history.input_file import InputFile
from tests.bench.harness.report import DATA, argument_parser, describe_run, save, use_trainer_process_settings
from tests.bench.quality.real_logs import SETS, RealLog
from tests.support.config import write_config

LOGS = ("movielens-100k", "criteo-kaggle-8k", "talkingdata-100k", "simulated-completejourney")
MOST_SAMPLES, QUICK_SAMPLES = 100_000, 2_000
NEEDED = 0.001


def write_settings(real: RealLog, folder: Path) -> Path:
    """Write the default settings with this log's schema into `folder`."""
    schema = {name: getattr(real, name) for name in ("categorical", "multi_value", "dense", "timestamp")}
    paths = {"table": {"disk_path": folder / "spill"}, "log": {"path": folder / "log"}}
    named = {"name": "agreement", "schema": {"label": "click", **schema}}
    return write_config(folder / "springtide.toml", named, paths)


def through_kafka(path: Path, file: Path, limit: int) -> dict[str, float]:
    """Return samples, AUC, logloss and seconds of a trainer that has learned the file from a topic."""
    config = load_config(path)
    with EmbeddedBroker(config.log.path):
        Replay(ReplayConfig(path=file, limit=limit), config.source, log_path=config.log.path).run(threading.Event())
        began = time.monotonic()
        status = Trainer(config, until_end=True).run().to_json()
        seconds = time.monotonic() - began
    whole = status["scores"]["whole"]
    return {"samples": status["samples_trained"], "auc": whole["auc"], "logloss": whole["logloss"], "seconds": seconds}


def by_evaluate(path: Path, file: Path, limit: int) -> dict[str, float]:
    """Return the same of `springtide evaluate`."""
    began = time.monotonic()
    result = evaluate_files([InputFile(file)], path, limit=limit)
    seconds = time.monotonic() - began
    assert result.first.auc is not None
    return {
        "samples": result.samples,
        "auc": result.first.auc,
        "logloss": result.first.logloss,
        "seconds": seconds,
    }


def compare(name: str, file: Path, limit: int) -> dict[str, Any]:
    """Learn a log both ways."""
    with tempfile.TemporaryDirectory(prefix="agreement-", ignore_cleanup_errors=True) as folder:
        path = write_settings(SETS[name], Path(folder))
        kafka, evaluate = through_kafka(path, file, limit), by_evaluate(path, file, limit)
    apart = max(abs(kafka[score] - evaluate[score]) for score in ("auc", "logloss"))
    agree = apart <= NEEDED and kafka["samples"] == evaluate["samples"]
    return {"log": name, "kafka": kafka, "evaluate": evaluate, "apart": apart, "agree": agree}


def describe(case: dict[str, Any]) -> str:
    """Return one line."""
    ways = [
        f"{way} AUC {case[way]['auc']:.5f} logloss {case[way]['logloss']:.5f} ({case[way]['seconds']:.1f} s)"
        for way in ("kafka", "evaluate")
    ]
    samples = f"{case['kafka']['samples']:,} and {case['evaluate']['samples']:,} samples"
    verdict = "agree" if case["agree"] else "DO NOT AGREE"
    return f"{case['log']:26} {'; '.join(ways)}; {samples}; at most {case['apart']:.5f} apart: {verdict}"


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--logs", default=",".join(LOGS))
    parser.add_argument("--samples", type=int, default=MOST_SAMPLES, help="of each log, at most")
    parser.add_argument("--data", type=Path, default=DATA, help="where the logs' .parquet files are")
    options = parser.parse_args()
    use_trainer_process_settings()
    run = describe_run("quality.agreement", options, packages=("torch", "numba", "numpy"))
    limit, cases = QUICK_SAMPLES if options.quick else options.samples, []
    for name in options.logs.split(","):
        file = options.data / f"{SETS[name].file}.parquet"
        if not file.is_file():
            print(f"skipped: {name}, {options.data} does not have it", flush=True)
            continue
        cases.append(compare(name, file, limit))
        print(describe(cases[-1]), flush=True)
    save(options, run | {"cases": cases})
    return 0 if all(case["agree"] for case in cases) else 1
