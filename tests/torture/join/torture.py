"""A trainer of a joined stream is killed at every step of the join's protocol, and learns what the definition says."""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from springtide.app.config.load import load_config
from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from tests.support.apache_kafka import stop_shared_node
from tests.support.broker import USES_APACHE
from tests.support.config import Section, write_config
from tests.support.process_pool import ProcessPool
from tests.support.waiting import wait_until
from tests.torture.cluster.faulty_broker import FaultyBroker
from tests.torture.cluster.site import is_running
from tests.torture.join.expected import Expected, ImpressionColumns, Samples, learn_ready_made
from tests.torture.join.feeder import Feeder
from tests.torture.join.recorder import JOIN_POINTS, VARIABLE_OF_FILE, Floor, Life, read_life
from tests.torture.join.traffic import (
    ACTIONS,
    CLICK_MS,
    DEDUPE_MS,
    EARLY_MS,
    IMPRESSIONS,
    LABELS,
    LATENESS_MS,
    ORDER_MS,
    Traffic,
)
from tests.torture.random_faults import MEMORY
from tests.torture.verify.log_contents import LogContents, read_log_contents

IDLE_SECONDS, WINDOW_SAMPLES = 0.3, 10_000
SETTINGS = f"""
name = "joined"
[schema]
labels = ["click", "order"]
timestamp = "ts"
categorical = ["user_id", "item_id"]
[join]
key = ["request"]
lateness_seconds = {LATENESS_MS / 1000}
early_seconds = {EARLY_MS / 1000}
dedupe_seconds = {DEDUPE_MS / 1000}
idle_seconds = {IDLE_SECONDS}
[labels.click]
topic = "{ACTIONS}"
where = {{ action = "click" }}
window_seconds = {CLICK_MS / 1000}
[labels.order]
topic = "{ACTIONS}"
where = {{ action = "order" }}
window_seconds = {ORDER_MS / 1000}
value = "count"
loss = "mse"
[table]
dim = 4
device_bytes = "32MiB"
[model]
crosses = 0
[train]
threads = 1
batch_size = 256
min_batch_size = 0
max_wait_seconds = inf
window_samples = {WINDOW_SAMPLES}
[log]
publish_seconds = 0.1
durable_seconds = 0.2
onnx = false
"""
# the steps of publishing and of starting, and those of the join
TRAINER_POINTS = (
    "before a checkpoint",
    "after a checkpoint",
    "after the epoch check before an append",
    "after an append before its fsync",
    "after an fsync before the epoch check",
    "after a claim",
    "while the log is replayed",
)
RANDOM_MOMENT = "a random moment"
POINTS = (*JOIN_POINTS, *TRAINER_POINTS, RANDOM_MOMENT)
START_POINTS = ("after a claim", "while the log is replayed", "while the join reads again")
HIT_SECONDS, END_SECONDS, STEP_SECONDS = 30.0, 1_200.0, 0.05
STEPS, LEARNED_BYTES = 8, 60_000  # in which a share is fed; what a trainer has recorded that has learned a few batches
Report = Callable[[str], None]


def configure(folder: Path, address: str, *layers: Section | str) -> Path:
    """Write springtide.toml into a folder, with log and spill in the same."""
    folder.mkdir(exist_ok=True)
    places = {
        "source": {"topic": IMPRESSIONS, "bootstrap_servers": address},
        "log": {"path": str(folder / "log")},
        "table": {"disk_path": str(folder / "spill")},
    }
    return write_config(folder / "springtide.toml", SETTINGS, places, *layers)


class JoinTorture:
    """Feeds a traffic to a broker, and kills the trainer that joins it."""

    def __init__(self, folder: Path, traffic: Traffic, pool: ProcessPool, report: Report = print) -> None:
        self.folder, self.seed, self.report = folder, traffic.seed, report
        self.traffic, self.broker = traffic, FaultyBroker()
        self.feeder = Feeder(self.traffic, self.broker.address)
        self.config = configure(folder, self.broker.address)
        self.log, self._armed = folder / "log", folder / "armed"
        self._armed.mkdir()
        self.num_kills, self.num_lives = 0, 0
        self.points: Counter[str] = Counter()
        self.began = time.monotonic()
        self._pool, self._trainer = pool, 0

    def run(self, num_kills: int) -> dict[str, Any]:
        """Feed all impressions between so many kills, learn the rest, compare; return the figures."""
        draw = random.Random(self.seed)
        share_ms = self.traffic.last_arrival_ms // (num_kills + 1) + 1
        points: list[str] = []
        while self.num_kills < num_kills:
            if not points:
                points = draw.sample(POINTS, len(POINTS))
            self._hold_partitions(draw)
            self._play(draw, points.pop(), share_ms)
        if self._is_running():
            self._kill()
        self.feeder.end()
        self._start("--until-end")
        assert self._pool.wait(self._trainer, END_SECONDS) == 0, self.output()
        return self._compare()

    def _hold_partitions(self, draw: random.Random) -> None:
        """Let one partition in two be silent for a while, and then come back with what is old."""
        self.feeder.held = {place for place in sorted(self.traffic.rows) if draw.random() < 0.15}

    def _play(self, draw: random.Random, point: str, share_ms: int) -> None:
        """Feed a share of the stream, and kill the trainer where it reaches a point."""
        visit = draw.randrange(1, 6) if "epoch check" in point or "checkpoint" in point else 1
        if point in START_POINTS and self._is_running():
            self._kill()
        is_armed_first = point in START_POINTS or draw.random() < 0.3
        if is_armed_first and point != RANDOM_MOMENT:
            self._arm(point, visit)
        if not self._is_running():
            self._start()
        for _ in range(STEPS):
            self.feeder.advance(share_ms // STEPS // 2)
            time.sleep(0.02)
        if not is_armed_first:
            self._wait_until_learning(self.feeder.frontier_ms - share_ms)
        if point == RANDOM_MOMENT:
            time.sleep(draw.random())
        elif not is_armed_first:
            self._arm(point, visit)
        deadline, step = time.monotonic() + HIT_SECONDS, 0
        while point != RANDOM_MOMENT and self._struck() is None and time.monotonic() < deadline:
            assert self._is_running() or self._struck() is not None, f"the trainer ended: {self.output()}"
            if step == int(4 * IDLE_SECONDS / STEP_SECONDS):
                self.feeder.held = set()  # what was held back comes now, behind others
            if step < STEPS or step % 40 == 0:
                self.feeder.advance(share_ms // STEPS // 2)
            step += 1
            time.sleep(STEP_SECONDS)
        if point != RANDOM_MOMENT and self._struck() is None:
            point = f"not reached: {point}"
        self._kill()
        self.points[point] += 1
        for path in self._armed.iterdir():
            path.unlink()
        self.report(f"kill {self.num_kills} at {time.monotonic() - self.began:.0f} s: {point}")

    def _wait_until_learning(self, ms: int) -> None:
        """Wait until this trainer has learned something, and all has learned what was fed by then, or a while."""
        path, deadline = self._life(self.num_lives - 1), time.monotonic() + HIT_SECONDS
        num = len(LABELS) * self.traffic.num * max(0, ms - ORDER_MS) // self.traffic.last_arrival_ms
        while time.monotonic() < deadline and (
            not path.exists()
            or path.stat().st_size < LEARNED_BYTES
            or (read_status(self.log) or TrainerStatus()).samples_trained < num
        ):
            assert self._is_running(), f"the trainer ended: {self.output()}"
            time.sleep(STEP_SECONDS)

    def _start(self, *options: str) -> None:
        path = self._life(self.num_lives)
        self.num_lives += 1
        environment = {"SPRINGTIDE_FAILPOINTS": str(self._armed), VARIABLE_OF_FILE: str(path)}
        self._trainer = self._pool.start(
            ["train", "--no-compact", *options], cwd=self.folder, out=self.folder / "train.out", environment=environment
        )

    def _life(self, number: int) -> Path:
        return self.folder / f"life-{number:04d}"

    def _is_running(self) -> bool:
        return self._trainer > 0 and self._pool.is_alive(self._trainer)

    def _arm(self, point: str, visit: int) -> None:
        draft = self._armed / ".draft"
        draft.write_text(f"KILL {visit}")
        draft.rename(self._armed / point.replace(" ", "-"))

    def _struck(self) -> int | None:
        return next((int(path.name.rpartition("-")[2]) for path in self._armed.glob("*.struck-*")), None)

    def _kill(self) -> None:
        if is_running(self._trainer) and self._struck() != self._trainer:
            os.kill(self._trainer, signal.SIGKILL)
        wait_until(lambda: not self._is_running(), "the end of the trainer")
        self.num_kills += 1

    def output(self) -> str:
        path = self.folder / "train.out"
        return path.read_text()[-3000:] if path.exists() else ""

    def lives(self) -> list[Life]:
        """What each process recorded that came to its stream."""
        found = (read_life(self._life(n)) for n in range(self.num_lives))
        return [life for life in found if life is not None]

    def _compare(self) -> dict[str, Any]:
        learned = LearnedInVersions(self.lives())
        expected = Expected.of(self.traffic, learned.floors)
        check_samples(learned.samples, expected.samples)
        contents = read_log_contents(self.log, window_samples=WINDOW_SAMPLES)
        check_meta(contents, expected)
        columns = ImpressionColumns(self.traffic, load_config(self.config)).take(expected.samples)
        assert np.array_equal(columns.features.categorical_NC, learned.samples["ids"]), "features of other impressions"
        reference = self.folder / "reference"
        path = configure(reference, self.broker.address)
        differences = contents.differences(learn_ready_made(reference, path, columns))
        # an empty batch before the first sample, positions and dead letters are of the reading
        differences = [line for line in differences if not line.startswith(("dead_letters", "watermarks"))]
        assert not differences, f"{len(differences)} differences of the models, such as {differences[:5]}"
        labels_NL = expected.samples["labels"]
        return {
            "seed": self.seed,
            "impressions": self.traffic.num,
            "records": sum(self.feeder.num_sent.values()),
            "samples": len(labels_NL),
            "clicked": int(np.nansum(labels_NL[:, 0])),
            "orders": int(np.nansum(labels_NL[:, 1])),
            "duplicates": expected.num_duplicates,
            "dead_letters": dict(expected.dead_letters),
            "late_by_floor": expected.num_late_by_floor,
            "kills": self.num_kills,
            "points": dict(self.points),
            "lives": len(learned.lives),
            "learned_again": learned.num_lost,
            "versions": learned.num_versions,
            "cut_within_a_millisecond": learned.num_cuts_within_ms,
            "idle_marks": learned.num_idle_marks,
            "floors": len(learned.floors),
            "read_again": learned.num_read_again,
            "seconds": round(time.monotonic() - self.began),
        }

    def close(self) -> None:
        if self._is_running():
            os.kill(self._trainer, signal.SIGKILL)
            wait_until(lambda: not self._is_running(), "the end of the trainer")
        self.broker.close()


class LearnedInVersions:
    """What all processes together have learned: of each what the version holds with which the next one began."""

    def __init__(self, lives: list[Life]) -> None:
        self.lives = lives
        self.floors: dict[Floor, int] = {}
        self.num_lost = self.num_cuts_within_ms = 0
        self.num_versions = sum(len(life.versions) for life in lives)
        self.num_idle_marks = sum(life.num_idle_marks for life in lives)
        self.num_read_again = sum(life.num_read_again for life in lives)
        parts: list[Samples] = []
        assert lives
        assert lives[0].first_sample == 0
        for number, life in enumerate(lives):
            following = lives[number + 1] if number + 1 < len(lives) else None
            if following is None:
                parts.append(life.columns(life.num_samples))
                self.floors |= life.floors
                continue
            num = following.first_sample - life.first_sample
            assert 0 <= num <= life.num_samples, f"life {number}: {num} of {life.num_samples} samples are in a version"
            known = [*life.versions, (life.first_sample, life.began_with), (0, None)]
            assert (following.first_sample, following.began_with) in known, "a version that the life before had not"
            parts.append(life.columns(num))
            self.num_lost += life.num_samples - num
            if following.began_with is not None:
                self._add_floors(life, following)
                self._count_cut(life, num)
        filled = [part for part in parts if part]
        self.samples: Samples = {name: np.concatenate([part[name] for part in filled]) for name in filled[0]}

    def _add_floors(self, life: Life, following: Life) -> None:
        """Those of records that the version had passed."""
        assert following.began_with is not None
        marks = following.began_with.cursors
        for (cursor, partition, offset), ms in life.floors.items():
            mark = marks[cursor].get(str(partition))
            if mark is not None and offset < mark.next_offset:
                self.floors[cursor, partition, offset] = ms

    def _count_cut(self, life: Life, num: int) -> None:
        if 0 < num < life.num_samples:
            due_ms = life.columns(life.num_samples)["due_ms"]
            self.num_cuts_within_ms += int(due_ms[num - 1] == due_ms[num])


def check_samples(learned: Samples, expected: Samples) -> None:
    """Compare places, labels and order."""
    num = min(len(learned["due_ms"]), len(expected["due_ms"]))
    for name, column in expected.items():
        is_same_N = learned[name][:num] == column[:num]
        if name == "labels":
            is_same_N = (is_same_N | (np.isnan(learned[name][:num]) & np.isnan(column[:num]))).all(axis=1)
        if not is_same_N.all():
            n = int(np.argmin(is_same_N))
            raise AssertionError(f"{name} of sample {n} is {learned[name][n]}, by definition {column[n]}")
    assert len(learned["due_ms"]) == len(expected["due_ms"])


def check_meta(contents: LogContents, expected: Expected) -> None:
    """Compare what the last version counts, and how often each user's row was learned."""
    meta = contents.meta
    assert meta.samples_trained == len(expected.samples["due_ms"])
    assert meta.dead_letters == dict(expected.dead_letters), (meta.dead_letters, expected.dead_letters)
    assert meta.trainer["join"]["num_duplicates"] == expected.num_duplicates


def main() -> None:
    parser = argparse.ArgumentParser(prog="torture of the join", description=__doc__)
    parser.add_argument("--impressions", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"torture of the join: seed {seed}, {'Apache Kafka' if USES_APACHE else 'the embedded broker'}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="join-", dir=MEMORY if MEMORY.is_dir() else None))
    pool = ProcessPool()
    torture = JoinTorture(folder, Traffic(seed, options.impressions), pool, lambda line: print(line, flush=True))
    try:
        print(json.dumps(torture.run(options.kills)), flush=True)
    finally:
        torture.close()
        pool.close()
        stop_shared_node()
    shutil.rmtree(folder)
