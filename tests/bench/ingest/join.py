"""ingest.join: impressions joined with clicks of another topic, beside the same samples ready-made in one topic.

To columns (what a source returns), and learned (a trainer's whole run, versions included). A click comes for three
impressions in a hundred, after two minutes in the mean, within a window of ten; both topics have one partition. Every
label is compared first.
"""

import json
import random
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from springtide.app.config.load import Config, load_config
from springtide.app.training.trainer import Trainer
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.columns import Columns
from springtide.stream.join.source import JoinSource
from springtide.stream.source import KafkaSource, Source
from tests.bench.harness.report import Case, alternate, arguments, fail, report, use_trainer_process_settings
from tests.bench.workloads.events import CATEGORICAL, DENSE, FIRST_MS, make_events
from tests.bench.workloads.topics import fill

NEEDED = 0.7
WINDOW_MS, MEAN_DELAY_MS, CLICKED = 600_000, 120_000, 0.03
RATE = 10_000  # impressions a second of event time
SETTINGS = f"""
[schema]
labels = ["click"]
timestamp = "ts"
categorical = {json.dumps(CATEGORICAL)}
dense = {json.dumps(DENSE)}

[table]
dim = 16
device_bytes = "1GiB"
"""
JOIN = f"""
[join]
key = ["request"]
idle_seconds = 0.1

[labels.click]
topic = "clicks"
window_seconds = {WINDOW_MS / 1000}
"""


@dataclass(frozen=True)
class Workload:
    """The records of the three topics."""

    impressions: list[bytes]
    clicks: list[bytes]
    samples: list[bytes]  # the impressions with their labels
    num_clicked: int


def make_workload(number: int) -> Workload:
    """Impressions in time order, clicks in theirs, and a last record of both that ends every window."""
    rng = random.Random(1)
    impressions, clicks, samples, num_clicked = [], [], [], 0
    for n, text in enumerate(make_events(number)):
        event = json.loads(text) | {"ts": FIRST_MS + n * 1000 // RATE, "request": f"r{n}"}
        del event["click"]
        delay_ms = int(rng.expovariate(1 / MEAN_DELAY_MS)) if rng.random() < CLICKED else None
        is_clicked = delay_ms is not None and delay_ms <= WINDOW_MS
        if delay_ms is not None:
            clicks.append((event["ts"] + delay_ms, n))
        num_clicked += is_clicked
        impressions.append(json.dumps(event, separators=(",", ":")).encode())
        samples.append(json.dumps(event | {"click": int(is_clicked)}, separators=(",", ":")).encode())
    end_ms = FIRST_MS + number * 1000 // RATE + 2 * WINDOW_MS
    impressions.append(json.dumps({"ts": end_ms, "request": "end"}).encode())
    clicked = [{"ts": ms, "request": f"r{n}"} for ms, n in sorted(clicks)] + [{"ts": end_ms, "request": "none"}]
    return Workload(impressions, [json.dumps(click).encode() for click in clicked], samples, num_clicked)


def configure(folder: Path, broker: EmbeddedBroker, *, joins: bool) -> Config:
    """The configuration of a trainer of joined or ready-made samples."""
    path = folder / f"{'joined' if joins else 'ready'}.toml"
    source = f'[source]\ntopic = "{"impressions" if joins else "samples"}"\nbootstrap_servers = "{broker.address}"\n'
    path.write_text(f'name = "bench"\n{source}{SETTINGS}{JOIN if joins else ""}')
    return load_config(path)


def open_source(config: Config) -> Source:
    """The source that a trainer would read from."""
    if config.join is None:
        return KafkaSource(config.source, config.schema)
    return JoinSource(config.source, config.join, config.schema)


def read(config: Config, number: int) -> list[Columns]:
    """Read so many samples."""
    parts: list[Columns] = []
    count = 0
    with open_source(config) as source:
        while count < number:
            for columns in source.poll(10.0):
                parts.append(columns)
                count += len(columns)
    return parts


def check(configs: dict[str, Config], workload: Workload) -> None:
    """Compare the features and labels of all samples."""
    number = len(workload.samples)
    rows = {}
    for name, config in configs.items():
        parts = read(config, number)
        ids_NC = np.concatenate([part.features.categorical_NC for part in parts])
        labels_N = np.concatenate([part.labels_NL[:, 0] for part in parts])
        times_N = np.concatenate([part.event_ms_N for part in parts])
        order = np.lexsort((*ids_NC.T, times_N))
        rows[name] = ids_NC[order], labels_N[order]
    if not all(np.array_equal(*both) for both in zip(*rows.values(), strict=True)):
        fail("joined samples differ from those that are ready-made")
    if int(rows["ours"][1].sum()) != workload.num_clicked:
        fail("labels")


def rate_of_columns(config: Config, number: int) -> float:
    """Samples a second, from the first connection to the last sample."""
    start = time.perf_counter()
    read(config, number)
    return number / (time.perf_counter() - start)


def rate_of_learning(config: Config, number: int) -> float:
    """Samples a second of a trainer's whole run with a log of its own."""
    with tempfile.TemporaryDirectory() as folder:
        log = replace(config.log, path=Path(folder) / "log")
        table = replace(config.table, disk_path=str(Path(folder) / "spill"))
        trainer = Trainer(Config(**{**vars(config), "log": log, "table": table}), until_end=True)
        start = time.perf_counter()
        status = trainer.run()
        seconds = time.perf_counter() - start
    if status.samples_trained != number:
        fail(f"{status.samples_trained} of {number} samples were learned")
    return number / seconds


def main() -> None:
    options = arguments(__doc__)
    use_trainer_process_settings()
    number, repeats = (20_000, 2) if options.quick else (300_000, 5)
    workload = make_workload(number)
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
        configs = {
            "ours": configure(Path(folder), broker, joins=True),
            "ready-made": configure(Path(folder), broker, joins=False),
        }
        joined = configs["ours"].source
        fill(joined, workload.impressions)
        fill(replace(joined, topic="clicks"), workload.clicks)
        fill(configs["ready-made"].source, workload.samples)
        check(configs, workload)
        cases = []
        for what, rate in (("to columns", rate_of_columns), ("learned", rate_of_learning)):
            rates = alternate(
                {name: partial(rate, config, number) for name, config in configs.items()}, repeats=repeats
            )
            cases.append(Case(what, "samples/s", rates.pop("ours"), rates, needed=NEEDED))
        report("ingest.join", cases, options, packages=("kafka-python", "numba", "numpy", "torch"))


if __name__ == "__main__":
    main()
