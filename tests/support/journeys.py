"""Count the files and functions that a click crosses: how far a reader must go who follows it through the code.

    python -m tests.support.journeys

An embedded broker, the real trainer and the real server run in this process, each in its thread. `sys.setprofile`
sees every Python function of our packages; what Numba compiled is one call. A *move* is a call from one file of ours
into another. Threads that poll do so more or less often, so calls vary a little from run to run; files and functions
hardly do.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx

from springtide.app.config.load import Config, load_config
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server.serve import serve
from springtide.app.training.publisher import Publisher
from springtide.app.training.state.training_state import TrainingState
from springtide.app.training.trainer import Trainer
from springtide.stream.broker.embedded import EmbeddedBroker
from tests.support.config import write_config
from tests.support.kafka import create_topic, produce
from tests.support.processes import ROOT
from tests.support.waiting import wait_until

OURS = tuple(f"{ROOT.resolve()}/{folder}/" for folder in ("app", "stream", "embeddings", "kernels", "deploy"))
NUM_CLICKS, TOPIC = 300, "clicks"
NUM_IDLE_PASSES = 5
LEARN, PUBLISH, PASS = "learn", "publish", "pass"
SECTIONS: dict[CodeType, str] = {
    TrainingState.learn.__code__: LEARN,
    Publisher.publish.__code__: PUBLISH,
    Trainer.run_once.__code__: PASS,
}


THREADS = {  # by the beginnings of their names
    "Kafka thread": ("source",),
    "trainer's loop": ("trainer",),
    "log's threads": ("log", "status"),
    "follower of the server": ("springtide-follower",),
}


@dataclass
class Trace:
    """What some thread crossed: functions by file, and how often it went."""

    functions: set[tuple[str, CodeType]] = field(default_factory=set)
    calls: int = 0
    moves: int = 0

    @property
    def files(self) -> set[str]:
        """The files of these functions."""
        return {file for file, _ in self.functions}

    def add(self, file: str, code: CodeType, *, is_move: bool) -> None:
        """Count one call."""
        self.functions.add((file, code))
        self.calls += 1
        self.moves += is_move

    def __or__(self, other: "Trace") -> "Trace":
        return Trace(self.functions | other.functions, self.calls + other.calls, self.moves + other.moves)


class CallCounter:
    """Counts the calls of every thread that starts while it is installed, in the windows that are opened."""

    def __init__(self) -> None:
        self.sections: list[tuple[str, str, Trace]] = []  # window, section, what one run of it crossed
        self._files: dict[CodeType, str] = {}  # "" for code that is not ours
        self._windows: dict[str, dict[str, Trace]] = {}  # window -> thread -> what it crossed
        self._window = ""
        self._open = threading.local()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch this thread and those that it starts."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Count what happens meanwhile."""
        self._windows[name] = defaultdict(Trace)
        self._window = name
        try:
            yield
        finally:
            self._window = ""

    def trace(self, window: str, *threads: str) -> Trace:
        """Return what the threads whose names begin so crossed in a window; all threads if none is named."""
        found = Trace()
        for name, trace in self._windows[window].items():
            if not threads or name.startswith(threads):
                found |= trace
        return found

    def usual(self, window: str, section: str) -> Trace:
        """Return the run of a section that is the median by its calls."""
        runs = sorted(
            (trace for where, name, trace in self.sections if (where, name) == (window, section)),
            key=lambda trace: trace.calls,
        )
        return runs[len(runs) // 2]

    def idle_passes(self, window: str) -> list[Trace]:
        """Return the passes of the loop that neither learned nor published, ordered by their calls."""
        busy = {code for code, name in SECTIONS.items() if name != PASS}
        runs = [trace for where, name, trace in list(self.sections) if (where, name) == (window, PASS)]
        idle = [trace for trace in runs if not busy & {code for _, code in trace.functions}]
        return sorted(idle, key=lambda trace: trace.calls)

    def idle_pass(self, window: str) -> Trace:
        """Return the idle pass that is the median by its calls."""
        runs = self.idle_passes(window)
        return runs[len(runs) // 2]

    def _file(self, code: CodeType) -> str:
        if (known := self._files.get(code)) is None:
            path = os.path.realpath(code.co_filename)
            is_ours = path.startswith(OURS) and code.co_name != "<module>"
            known = self._files[code] = path.removeprefix(f"{ROOT.resolve()}/") if is_ours else ""
        return known

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        window = self._window  # once: another thread closes it
        if not window or event not in ("call", "return"):
            return
        code = frame.f_code
        if not (file := self._file(code)):
            return
        running: list[tuple[FrameType, str, str, Trace]] = self._open.__dict__.setdefault("sections", [])
        if event == "return":
            if running and running[-1][0] is frame:
                _, opened, section, trace = running.pop()
                self.sections.append((opened, section, trace))
            return
        if (section := SECTIONS.get(code, "")) and section not in {name for _, _, name, _ in running}:
            running.append((frame, window, section, Trace()))
        is_move = self._caller_file(frame) not in ("", file)
        for trace in (self._windows[window][threading.current_thread().name], *(open_[3] for open_ in running)):
            trace.add(file, code, is_move=is_move)

    def _caller_file(self, frame: FrameType | None) -> str:
        """Return our file from which a frame was called, directly or through others' code; "" if there is none."""
        assert frame is not None
        while (frame := frame.f_back) is not None:
            if file := self._file(frame.f_code):
                return file
        return ""


class Journey:
    """A broker, a trainer and a server in this process, whose threads a counter watches."""

    def __init__(self, folder: Path, counter: CallCounter, *, wide: bool) -> None:
        self.counter = counter
        self.config = config_of(folder, wide=wide)
        self.broker = EmbeddedBroker(folder / "log")
        self.broker.start()
        create_topic(self.broker.address, TOPIC)
        self.num = 0
        self.trainer = Trainer(self.config)
        self._until = threading.Event()
        urls: list[str] = []
        settings = {"on_listening": urls.append, "until": self._until}
        self._threads = [
            threading.Thread(target=self.trainer.run, name="trainer"),
            threading.Thread(
                target=serve, args=(self.config.log.path, ServeConfig(port=0)), kwargs=settings, name="server"
            ),
        ]
        for thread in self._threads:
            thread.start()
        wait_until(lambda: urls)
        self.client = httpx.Client(base_url=urls[0], timeout=300)

    def click(self, num: int) -> None:
        """Send clicks; returns when the server has learned of them."""
        clicks = [
            {"user_id": n % 37, "item_id": f"item {n % 11}", "age": n % 80, "click": int(n % 37 % 3 == 0)}
            for n in range(self.num, self.num + num)
        ]
        values = [json.dumps(click | {"ts": int(time.time() * 1000)}).encode() for click in clicks]
        self.num += num
        produce(self.broker.address, TOPIC, values)

        def is_served() -> bool:
            version: int | None = self.client.get("/readyz").json().get("version")
            state, log = self.trainer.state, self.trainer.log
            is_published = state.samples_trained == self.num and not state.changed
            return is_published and log.last_encoded is not None and version == log.last_encoded.number

        wait_until(is_served, f"{self.num} samples")

    def get(self) -> None:
        """Read one row."""
        assert self.client.get("/v1/embeddings/user_id/3").status_code == 200

    def predict(self) -> None:
        """Score one instance."""
        instance = {"user_id": 3, "item_id": "item 3", "age": 30}
        assert self.client.post("/v1/predict", json={"instances": [instance]}).status_code == 200

    def ask(self) -> None:
        """Read and score."""
        self.get()
        self.predict()

    def restart(self) -> None:
        """Stop trainer and server, and read the log back as the next trainer does."""
        self.stop()
        with self.counter.window("restart"):
            again = Trainer(self.config)
        again.stop()
        again.run()

    def stop(self) -> None:
        """Stop the trainer and the server."""
        self.client.close()
        self.trainer.stop()
        self._until.set()
        for thread in self._threads:
            thread.join(300)

    def __enter__(self) -> "Journey":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.broker.stop()


def config_of(folder: Path, *, wide: bool) -> Config:
    """Return the settings of a small model of clicks, whose log lies in the folder."""
    sections = {
        "name": "test",
        "source": {"topic": TOPIC},
        "schema": {
            "label": "click",
            "timestamp": "ts",
            "categorical": ["user_id", "item_id"],
            "dense": ["age"],
        },
        "table": {"dim": 4, "device_bytes": "8MiB", "disk_path": str(folder / "spill")},
        "model": {"wide": wide},
        "train": {"batch_size": 64, "min_batch_size": 0, "max_wait_seconds": 0.05, "threads": 1},
        "log": {"path": str(folder / "log"), "publish_seconds": 0.05, "durable_seconds": 0.05},
    }
    return load_config(write_config(folder / "springtide.toml", sections))


def count_journeys(folder: Path, *, wide: bool, num_clicks: int = NUM_CLICKS) -> dict[str, Trace]:
    """Return what each journey crosses; of a model with a wide part only what it learns a sample with."""
    counter = CallCounter()
    with counter.installed(), Journey(folder, counter, wide=wide) as journey:
        journey.click(8)  # what happens once has happened
        journey.ask()
        with counter.window("clicks"):
            journey.click(num_clicks)
        with counter.window("one click"):
            journey.click(1)
        learn = counter.usual("one click", LEARN)
        if wide:
            return {"  of it: learn 1 sample, with the wide part": learn}
        with counter.window("idle"):
            wait_until(lambda: len(counter.idle_passes("idle")) >= NUM_IDLE_PASSES, "idle passes of the loop")
        with counter.window("get"):
            journey.get()
        with counter.window("predict"):
            journey.predict()
        journey.restart()
    by_thread = {f"a click: {name}": counter.trace("clicks", *names) for name, names in THREADS.items()}
    click, get = reduce(or_, by_thread.values()), counter.trace("get", "server")
    return by_thread | {
        "a click: all of these": click,
        "a click, and GET of a row": click | get,
        "  of it: GET of a row": get,
        "  of it: publish": counter.usual("clicks", PUBLISH),
        "  of it: an idle pass of the loop": counter.idle_pass("idle"),
        "  of it: learn 1 sample": learn,
        "POST predict": counter.trace("predict", "server", "springtide-score"),
        "a restart: Trainer() on this log": counter.trace("restart", threading.current_thread().name),
    }


def table(found: dict[str, Trace]) -> str:
    """Return the counts as a table."""
    lines = [f"{'journey':44} {'files':>7} {'functions':>10} {'calls':>8} {'moves':>7}"]
    for name, trace in found.items():
        lines.append(f"{name:44} {len(trace.files):7} {len(trace.functions):10} {trace.calls:8} {trace.moves:7}")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as beside:
        print(table(count_journeys(Path(alone), wide=False) | count_journeys(Path(beside), wide=True)))
