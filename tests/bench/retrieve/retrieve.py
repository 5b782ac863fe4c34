"""retrieve: recall and speed of two-tower retrieval, and its latency while a trainer publishes.

Two towers learn from synthetic clicks on a million items, and from MovieLens-100k if it is there. Items are encoded and
indexed as a server does it; 200 users ask the index, and all vectors: one matrix product and a partition. Last, a
trainer in another process goes on, with new items in each version, while users ask one after the other.
"""

import gc
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from springtide.app.config.load import load_config
from springtide.app.processes.tuning import take_short_slices
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.server_metrics import declare_metrics
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.retrieve.retriever import INDEXED_ITEMS, Retriever, recall
from springtide.app.serving.server.worker import SWITCH_INTERVAL_SECONDS
from springtide.app.training.bootstrap import load_state
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.log.directory import LogDirectory
from tests.bench.harness.report import argument_parser, describe_run, fail, save
from tests.bench.retrieve import movielens, synthetic
from tests.bench.retrieve.asking import ask, compare, features_of, percentiles
from tests.support.config import Section, write_config

NUM_NEW_ASKED = 50


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of asking while a trainer goes on")
    options = parser.parse_args()
    num_items, seconds = (20_000, 3.0) if options.quick else (options.items, options.seconds)
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)  # as a server does
    run = describe_run("retrieve", options, packages=("torch", "numpy", "numba"))
    result: dict[str, Any] = {}
    if movielens.PATH.exists():
        with tempfile.TemporaryDirectory() as name:
            path = write_settings(Path(name), movielens.SETTINGS)
            learn(path, movielens.learn_ratings)
            for title, indexed_items in (("movielens", INDEXED_ITEMS), ("movielens_indexed", 1)):
                replica, retriever = open_log(path, indexed_items)
                result[title] = compare(retriever, movielens.users())
                replica.follower.close()
                print(json.dumps({title: result[title]}), flush=True)
    else:
        print(f"skipped: MovieLens-100k, {movielens.PATH} is not there", flush=True)
    with tempfile.TemporaryDirectory() as name:
        path = write_settings(Path(name), synthetic.SETTINGS)
        num_batches = learn(path, lambda state, log: synthetic.learn_items(state, log, num_items))
        began = time.process_time()
        replica, retriever = open_log(path, 1)
        result["synthetic"] = {"start_and_build_processor_seconds": round(time.process_time() - began, 1)}
        result["synthetic"] |= compare(retriever, synthetic.users())
        print(json.dumps({"synthetic": result["synthetic"]}), flush=True)
        result["while_training"] = while_training(path, num_items, num_batches, replica, retriever, seconds)
    print(json.dumps(result, indent=1))
    save(options, run | result)


def write_settings(folder: Path, settings: Section) -> Path:
    """Write the configuration of two towers into a folder."""
    both: Section = {
        "name": "retrieve",
        "schema": {"label": "click"},
        "table": {"dim": 16, "disk_path": folder / "spill"},
        "model": {"name": "two_tower"},
        "train": {"threads": 1},
        "log": {"path": folder / "log"},
    }
    return write_config(folder / "springtide.toml", both, settings)


def learn(path: Path, learn_all: Any) -> Any:
    """Train on a new log, and compact it; returns what `learn_all` returns."""
    config = load_config(path)
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        result = learn_all(state, log)
        state.learner.table.close()
    compact_log(LogDirectory(config.log.path), window_samples=config.train.window_samples)
    return result


def open_log(path: Path, indexed_items: int) -> tuple[Replica, Retriever]:
    """Follow a log to its end, with its items encoded and indexed."""
    replica = Replica(
        Path(load_config(path).log.path),
        poll_interval_seconds=0.005,
        metrics=declare_metrics(MetricsRegistry()),
        cache_bytes=2 << 30,
        disk_bytes=4 << 30,
    )
    while replica.view is None or replica.follower.poll():
        replica.follower.poll()
    retriever = Retriever(lambda: replica.view, declare_metrics(MetricsRegistry()), indexed_items=indexed_items)
    retriever.step()
    gc.collect()
    gc.freeze()  # as a server does
    return replica, retriever


def while_training(
    path: Path, num_items: int, first_batch: int, replica: Replica, retriever: Retriever, seconds: float
) -> dict[str, Any]:
    """Ask while a trainer publishes; every item of a version must be found by the time that version answers."""
    context = multiprocessing.get_context("spawn")
    ends = context.Event()
    trainer = context.Process(target=synthetic.train_on, args=(path, num_items, first_batch, ends))
    times_ms: list[float] = []
    users = synthetic.users()
    before = retriever.require().towers.view.version
    trainer.start()
    follow = _Following(replica, retriever)
    try:
        follow.start()
        while retriever.require().towers.view.version == before:
            if not trainer.is_alive():
                fail("the trainer has ended")
            time.sleep(0.05)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for user in users[:50]:
                times_ms.append(ask(retriever, user).ms)
                time.sleep(0.002)
        newest = newest_items(retriever)
        lost = [item for item in newest if ask(retriever, users[0], filter={"item_id": [item]}).ids != [item]]
        if not newest or lost:
            fail(f"{len(lost)} of {len(newest)} new items are not found")
        served = retriever.require()
        inputs = [served.towers.user_inputs(user) for user in features_of(retriever, users)]
        return {
            "recall_at_10": round(recall(served, inputs), 4),
            "ms": percentiles(times_ms),
            "worst_ms": round(max(times_ms), 1),
            "asked": len(times_ms),
            "versions": follow.num_versions,
            "new_items_found": len(newest),
            "changed_items": served.num_changed,
            "index_is_versions_old": follow.versions_since(served.base.version),
        }
    finally:
        ends.set()
        trainer.join(60)
        follow.stop()


def newest_items(retriever: Retriever) -> Sequence[int]:
    """Return ids of some items that came with the newest versions."""
    served = retriever.require()
    ids = {item for items in (served.base, *served.changed) for item in items.ids_I.tolist()}
    return sorted(item for item in ids if item >= synthetic.NEW_ITEMS)[-NUM_NEW_ASKED:]


class _Following:
    """Follows the log and the views in a thread each, as a server does."""

    def __init__(self, replica: Replica, retriever: Retriever) -> None:
        self._replica, self._retriever = replica, retriever
        self._ends = threading.Event()
        self._versions: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def num_versions(self) -> int:
        return len(self._versions)

    def versions_since(self, version: int) -> int:
        """Return how many versions came after one."""
        return sum(number > version for number in self._versions)

    def start(self) -> None:
        self._thread.start()
        view = self._replica.view
        assert view is not None
        self._retriever.start(view)

    def stop(self) -> None:
        self._ends.set()
        self._retriever.stop()
        self._thread.join(30)
        self._retriever.join()

    def _run(self) -> None:
        take_short_slices()
        seen = self._replica.view
        while not self._ends.is_set():
            self._replica.follower.poll()
            view = self._replica.view
            if view is not None and view is not seen:
                seen = view
                self._versions.append(view.version)
            self._ends.wait(0.02)
        self._replica.follower.close()
