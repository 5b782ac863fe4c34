"""Those who ask a server all the time, each in a thread: look-ups, predictions, snapshots, events, HotModels."""

# K ids of a request
import http.client
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow
from springtide_client import HotModel
from springtide_client.errors import SpringtideError
from springtide_client.format.tensors import decode_tensors

from tests.torture.clicks import NUM_ITEMS, NUM_USERS, make_click
from tests.torture.load.response_verifier import ResponseVerifier

RAW, JSON, MSGPACK = "application/octet-stream", "application/json", "application/msgpack"
ARROW = "application/vnd.apache.arrow.stream"
STATUS_NAMES = ["known", "unknown", "not_admitted", "forgotten"]
# 503s that say the truth; anything else above 499 is a fault
ACCEPTED_503_CODES = {"not_ready", "too_stale", "version_not_reached", "busy"}
PAUSE_SECONDS = 0.01


class Client:
    """One connection that is made anew where a server left it; a 503 that is honest gives None."""

    def __init__(self, port: int, is_away: Callable[[], bool], answers: Counter[str]) -> None:
        self._port, self._is_away, self._answers = port, is_away, answers
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[dict[str, str], bytes] | None:
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        for _ in range(2):
            is_fresh = self._connection is None
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                self._connection.request(method, path, body, sent)
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                self.close()
                # nobody promised that a connection that was left idle still stands; a new one must be answered
                assert not is_fresh or self._is_away(), f"{method} {path}: nobody answered a new connection"
                continue
            if answer.will_close:
                self.close()
            told = {name.lower(): text for name, text in answer.getheaders()}
            return (told, content) if self._is_good(answer.status, content, f"{method} {path}") else None
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _is_good(self, status: int, content: bytes, what: str) -> bool:
        code = "" if status < 400 else json.loads(content)["error"]["code"]
        self._answers[f"{status} {code}".strip()] += 1
        assert status < 400 or status == 410 or (status == 503 and code in ACCEPTED_503_CODES), (
            f"{what}: {status} {content[:300]!r}"
        )
        return status == 200


class Clients:
    """Everybody. The first fault of anybody ends them all, and `close` raises it."""

    def __init__(self, port: int, log: Path, judge: ResponseVerifier, is_away: Callable[[], bool], seed: int) -> None:
        self._port, self._log, self._judge, self._is_away = port, log, judge, is_away
        self._stopping = threading.Event()
        self._faults: list[BaseException] = []
        self.answers: Counter[str] = Counter()
        asking = (
            self._look_up,
            self._predict,
            self._take_snapshots,
            self._hear_events,
            self._follow,
            self._follow_http,
        )
        self._threads = [
            threading.Thread(target=self._keep, args=(ask, np.random.default_rng([seed, number])))
            for number, ask in enumerate(asking)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether somebody found a fault."""
        return bool(self._faults)

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), f"{thread.name} hangs"
        if self._faults:
            raise self._faults[0]

    def _keep(self, ask: Callable[[Client, np.random.Generator], None], random: np.random.Generator) -> None:
        client = Client(self._port, self._is_away, self.answers)
        try:
            while not self._stopping.wait(PAUSE_SECONDS):
                ask(client, random)
        except BaseException as fault:
            self._faults.append(fault)
        finally:
            client.close()

    def _look_up(self, client: Client, random: np.random.Generator) -> None:
        kind = (RAW, JSON, MSGPACK, ARROW)[random.integers(4)]
        feature = "user_id" if kind == RAW else ("user_id", "item_id")[random.integers(2)]
        count = int(random.choice([1, 64, 500]))
        numbers = random.integers(0, NUM_USERS + 50 if feature == "user_id" else NUM_ITEMS, count).tolist()
        ids: list[Any] = numbers if feature == "user_id" else [f"item-{number}" for number in numbers]
        headers = {"Content_Type": kind}
        if random.random() < 0.1:
            headers["X_Springtide_Max_Staleness_Ms"] = str(random.integers(1, 3_000))
        answer = client.ask("POST", f"/v1/embeddings/{feature}", encode_request(kind, ids), **headers)
        if answer is not None:
            told, content = answer
            rows, status = decode_response(kind, content, count)
            self._judge.check_rows(kind, int(told["x-springtide-version"]), feature, ids, rows, status)

    def _predict(self, client: Client, random: np.random.Generator) -> None:
        instances = [make_click(7, int(offset)) for offset in random.integers(0, 1_000, random.integers(1, 30))]
        body = json.dumps({"instances": instances}).encode()
        if (answer := client.ask("POST", "/v1/predict", body)) is not None:
            document = json.loads(answer[1])
            self._judge.check_predictions("predict", document["version"], instances, document["predictions"])

    def _take_snapshots(self, client: Client, random: np.random.Generator) -> None:
        if (answer := client.ask("GET", "/v1/snapshot")) is not None:
            told, content = answer
            version = int(told["x-springtide-version"])
            tensors, metadata = decode_tensors(content)
            assert json.loads(metadata["manifest"])["version"] == version
            own = np.flatnonzero(tensors["rows.feature"] == 0)[:200]
            rows, ids = tensors["rows.value"][own], tensors["rows.id"][own].tolist()
            self._judge.check_rows("snapshot", version, "user_id", ids, rows, np.zeros(len(own), np.uint8))
        self._stopping.wait(0.5)

    def _hear_events(self, client: Client, random: np.random.Generator) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        last = 0
        try:
            connection.request("GET", "/v1/events")
            answer = connection.getresponse()
            self.answers[f"{answer.status}"] += 1
            while not self._stopping.is_set() and (line := answer.readline()):
                if line.startswith(b"id: "):
                    assert int(line[4:]) >= last, "events go back"
                    last = int(line[4:])
        except (OSError, http.client.HTTPException):
            assert last or self._is_away(), "nobody tells events"
        finally:
            connection.close()

    def _follow(self, client: Client, random: np.random.Generator) -> None:
        self._live("directory", str(self._log), random)

    def _follow_http(self, client: Client, random: np.random.Generator) -> None:
        self._live("http", f"http://127.0.0.1:{self._port}", random)

    def _live(self, who: str, where: str, random: np.random.Generator) -> None:
        """A HotModel joins, answers for a while, and leaves."""
        try:
            model = HotModel(where, cache_bytes="64MiB", wait_seconds=20.0)
        except SpringtideError:
            assert self._is_away(), f"no HotModel from {where}"
            return
        instances = [make_click(8, offset) for offset in range(5)]
        with model:
            last, until = 0, time.monotonic() + random.uniform(0.5, 4.0)
            while time.monotonic() < until and not self._stopping.wait(PAUSE_SECONDS):
                before = model.version
                users = random.integers(0, NUM_USERS, 20)
                rows, status = model.lookup("user_id", users)
                predictions = model.predict(instances)
                assert last <= before, f"a HotModel went back from {last} to {before}"
                last = before
                if model.version == before:
                    self._judge.check_rows(f"HotModel, {who}", before, "user_id", users.tolist(), rows, status)
                    self._judge.check_predictions(f"HotModel, {who}", before, instances, predictions)


def encode_request(kind: str, ids: list[Any]) -> bytes:
    """The body that asks for these ids."""
    if kind == RAW:
        return np.array(ids, "<i8").tobytes()
    if kind == ARROW:
        sink = io.BytesIO()
        table = pyarrow.table({"id": ids})
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()
    return (msgspec.json if kind == JSON else msgspec.msgpack).encode({"ids": ids})


def decode_response(kind: str, content: bytes, count: int) -> tuple[Any, Any]:
    """Rows float32 (K, D), NaN where there is none, and status codes of an answer."""
    if kind == RAW:
        return np.frombuffer(content[:-count], "<f4").reshape(count, -1), np.frombuffer(content[-count:], np.uint8)
    if kind == ARROW:
        table = pyarrow.ipc.open_stream(content).read_all()
        vectors, names = table.column("vector").to_pylist(), table.column("status").to_pylist()
        dim = table.schema.field("vector").type.list_size
    else:
        answer = (msgspec.json if kind == JSON else msgspec.msgpack).decode(content)
        vectors, names, dim = answer["vectors"], answer["status"], answer["dim"]
    status = np.array([STATUS_NAMES.index(name) for name in names], np.uint8)
    if kind == MSGPACK:
        return np.frombuffer(vectors, "<f4").reshape(count, dim), status
    return np.array([[np.nan] * dim if row is None else row for row in vectors], np.float32), status
