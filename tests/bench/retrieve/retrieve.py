"""retrieve: recall and speed of two-tower retrieval over many items, and its latency while a trainer publishes.

Two towers learn from synthetic clicks (users like the items of some categories). Then the items are encoded and their
graph is built as a server does it; 200 users ask the graph, and all vectors. Last, a trainer in another process goes
on, with new items in each version, while users ask one after the other.
"""

# N samples
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import torch
from springtide_client.encode import encode_instances
from springtide_client.features import Features, IdStrings
from springtide_client.log.directory import LogDirectory

from app.config.load import load_config
from app.processes.priority import yield_to_learning
from app.serving.metrics.registry import MetricsRegistry
from app.serving.metrics.server_metrics import declare_metrics
from app.serving.model.log_follower import LogFollower
from app.serving.retrieve.retriever import Retriever, recall
from app.training.bootstrap import load_state
from app.training.state.training_state import TrainingState
from app.version_log.compact.merge import compact_log
from app.version_log.write.writer import LogWriter
from stream.columns import Batch
from stream.positions import Partition
from tests.bench.harness.report import argument_parser, describe_run, fail

NUM_USERS, NUM_CATEGORIES, BATCH = 100_000, 200, 8_192
K, NUM_ASKED, NUM_NEW_ASKED = 10, 200, 50
PUBLISH_SECONDS = 0.5
NEW_ITEMS = 10_000_000  # ids from here on come while users ask
CONFIG = """
name = "retrieve"
[schema]
label = "click"
categorical = ["user_id", "taste", "item_id", "category"]
dense = ["price"]
[table]
dim = 16
device_bytes = "2GiB"
disk_path = "FOLDER/spill"
[model]
name = "two_tower"
options = { item = ["item_id", "category", "price"] }
[train]
threads = 1
[log]
path = "FOLDER/log"
"""


def make_batch(number: int, items_N: np.ndarray) -> Batch:
    """Users see items; they click those of the three categories next to their taste."""
    draw, num = np.random.default_rng(number), len(items_N)
    users_N = draw.integers(0, NUM_USERS, num)
    tastes_N, categories_N = users_N % NUM_CATEGORIES, items_N % NUM_CATEGORIES
    matched_N = draw.random(num) < 0.3  # else a click would be rare
    users_N = np.where(matched_N, users_N - tastes_N + categories_N, users_N)
    tastes_N = users_N % NUM_CATEGORIES
    clicks_N = (abs(tastes_N - categories_N) <= 1) & (draw.random(num) < 0.8)
    ids = np.stack([users_N, tastes_N, items_N, categories_N], axis=1)
    features = Features(ids, (), (items_N % 97).astype(np.float32)[:, None])
    event_ms_N = np.full(num, 1_700_000_000_000 + number, np.int64)
    partition = Partition("clicks", 0)
    return Batch(
        features,
        clicks_N.astype(np.float32)[:, None],
        np.ones(num, np.float32),
        event_ms_N,
        event_ms_N,
        {partition: (number + 1) * BATCH},
        id_strings=list[IdStrings](),
        watermarks={partition: int(event_ms_N[-1])},
    )


def learn_items(state: TrainingState, log: LogWriter, num_items: int) -> int:
    """Learn each item once, in versions of 16 batches; return the number of batches."""
    order = np.random.default_rng(0).permutation(num_items)
    numbers = range(0, num_items, BATCH)
    for number, start in enumerate(numbers):
        state.learn(make_batch(number, order[start : start + BATCH]))
        if number % 16 == 15 or start == numbers[-1]:
            log.append(*state.checkpoint(created_ms=number, complete_until_ms=1))
            log.sync()
    log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
    log.sync()
    return len(numbers)


def train_on(config_path: Path, num_items: int, first_batch: int, ends: Event) -> None:
    """Go on in this process: a batch after the other, a version every half second, ten new items in each."""
    torch.set_num_threads(1)
    config = load_config(config_path)
    with LogWriter.open(config.log, schema=config.schema, wait_seconds=30) as log:
        state = load_state(config, log)
        number, draw = first_batch, np.random.default_rng(1)
        while not ends.is_set():
            began, version = time.monotonic(), number
            while time.monotonic() - began < PUBLISH_SECONDS:
                items_N = draw.integers(0, num_items, BATCH // 4)
                items_N[:10] = NEW_ITEMS + 10 * version + np.arange(10)
                state.learn(make_batch(number, items_N))
                number += 1
            log.append(*state.checkpoint(created_ms=number, complete_until_ms=1))
        log.sync()
        state.learner.table.close()


def users_of(retriever: Retriever, num: int) -> list[Features]:
    """Return the features of some users."""
    part = retriever.require().towers.template.user_part
    draw = np.random.default_rng(7)
    return [
        encode_instances(part, [{"user_id": user, "taste": user % NUM_CATEGORIES}])
        for user in draw.integers(0, NUM_USERS, num).tolist()
    ]


def ask(retriever: Retriever, user: Features, *, exact: bool = False, wanted: Any = None) -> tuple[list[int], float]:
    """Return the best items, and how many milliseconds it took."""
    began = time.perf_counter()
    nothing = np.zeros(0, np.int64)
    ids, _ = retriever.require().retrieve(user, K, wanted=wanted or {}, excluded=nothing, exact=exact)
    return ids.tolist(), 1000 * (time.perf_counter() - began)


def percentiles(times_ms: list[float]) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(times_ms, p)), 3) for p in (50, 99)}


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of asking while a trainer goes on")
    options = parser.parse_args()
    num_items, seconds = (20_000, 3.0) if options.quick else (options.items, options.seconds)
    torch.set_num_threads(1)
    run = describe_run("retrieve", packages=("torch", "numpy", "usearch"), quick=options.quick)
    result: dict[str, Any] = {"items": num_items}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "springtide.toml"
        path.write_text(CONFIG.replace("FOLDER", name))
        config = load_config(path)
        began = time.monotonic()
        with LogWriter.open(config.log, schema=config.schema) as log:
            state = load_state(config, log)
            num_batches = learn_items(state, log, num_items)
            state.learner.table.close()
        compact_log(LogDirectory(config.log.path), window_samples=config.train.window_samples)
        result["learning_seconds"] = round(time.monotonic() - began, 1)
        metrics = declare_metrics(MetricsRegistry())
        follower = LogFollower(
            Path(config.log.path),
            cache_bytes=2 << 30,
            disk_bytes=4 << 30,
            cache_path=None,
            on_version=lambda *_: None,
            on_swap=lambda _: None,
            on_record=lambda _: None,
        )
        while follower.view is None or follower.poll():
            follower.poll()
        retriever = Retriever(lambda: follower.view, metrics, hnsw_items=1)
        began = time.monotonic()
        retriever.step()
        result["encode_and_build_seconds"] = round(time.monotonic() - began, 1)
        users = users_of(retriever, NUM_ASKED)
        ask(retriever, users[0]), ask(retriever, users[0], exact=True)
        exact = [ask(retriever, user, exact=True) for user in users]
        found = [ask(retriever, user) for user in users]
        same = statistics.mean(len(set(a) & set(b)) / K for (a, _), (b, _) in zip(exact, found, strict=True))
        result["recall_at_10"] = round(recall(retriever.require(), users), 4)
        result["same_ids_at_10"] = round(same, 4)  # of equally good items any may be found
        result["exact_ms"], result["found_ms"] = (percentiles([ms for _, ms in asked]) for asked in (exact, found))
        result["times_faster"] = round(result["exact_ms"]["p50"] / result["found_ms"]["p50"], 1)
        print(json.dumps(result), flush=True)
        result |= while_training(path, num_items, num_batches, follower, retriever, users, seconds)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(run | result, indent=1) + "\n")


def while_training(
    path: Path,
    num_items: int,
    first_batch: int,
    follower: LogFollower,
    retriever: Retriever,
    users: list[Features],
    seconds: float,
) -> dict[str, Any]:
    """Ask while a trainer publishes; every item of a version must be found by the time that version answers."""
    context = multiprocessing.get_context("spawn")
    ends = context.Event()
    trainer = context.Process(target=train_on, args=(path, num_items, first_batch, ends))
    times_ms: list[float] = []
    before = retriever.require().towers.view.version
    trainer.start()
    follow = _Following(follower, retriever)
    try:
        follow.start()
        while retriever.require().towers.view.version == before:
            if not trainer.is_alive():
                fail("the trainer has ended")
            time.sleep(0.05)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for user in users[:50]:
                times_ms.append(ask(retriever, user)[1])
                time.sleep(0.002)
        served = retriever.require()
        newest = [item for item in served.changed.ids_I.tolist() if item >= NEW_ITEMS][-NUM_NEW_ASKED:]
        lost = [item for item in newest if ask(retriever, users[0], wanted={"item_id": (item,)})[0] != [item]]
        if not newest or lost:
            fail(f"{len(lost)} of {len(newest)} new items are not found")
        return {
            "while_training_ms": percentiles(times_ms),
            "asked_while_training": len(times_ms),
            "versions_while_training": follow.num_versions,
            "new_items_found": len(newest),
            "changed_items": len(served.changed),
        }
    finally:
        ends.set()
        trainer.join(60)
        follow.stop()


class _Following:
    """Follows the log and the views in a thread each, as a server does."""

    def __init__(self, follower: LogFollower, retriever: Retriever) -> None:
        self._follower, self._retriever = follower, retriever
        self._ends = threading.Event()
        self.num_versions = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._retriever.start()

    def stop(self) -> None:
        self._ends.set()
        self._retriever.stop()
        self._thread.join(30)
        self._retriever.join()

    def _run(self) -> None:
        yield_to_learning()
        seen = None
        while not self._ends.is_set():
            self._follower.poll()
            if self._follower.view is not seen:
                seen, self.num_versions = self._follower.view, self.num_versions + 1
            self._ends.wait(0.02)
        self._follower.close()


if __name__ == "__main__":
    main()
