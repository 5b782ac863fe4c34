"""Clients that load a server, each in a thread: lookups, predictions, snapshots, events, HotModels."""

# K ids of a request, D dimension
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
# codes of 503 responses that are correct; any other status above 499 is a failure
ACCEPTED_503_CODES = {"not_ready", "too_stale", "version_not_reached", "busy"}
PAUSE_SECONDS = 0.01


class Client:
    """One connection, reopened when the server closes it. `request` returns None for an accepted 503 or a 410."""

    def __init__(self, port: int, is_restarting: Callable[[], bool], responses: Counter[str]) -> None:
        self._port, self._is_restarting, self._responses = port, is_restarting, responses
        self._connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[dict[str, str], bytes] | None:
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        for _ in range(2):
            is_fresh = self._connection is None
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            try:
                self._connection.request(method, path, body, sent)
                response = self._connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException):
                self.close()
                # the server may close an idle connection; a request on a new one must be answered
                assert not is_fresh or self._is_restarting(), f"{method} {path}: no response on a new connection"
                continue
            if response.will_close:
                self.close()
            received = {name.lower(): text for name, text in response.getheaders()}
            return (received, content) if self._is_success(response.status, content, f"{method} {path}") else None
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _is_success(self, status: int, content: bytes, what: str) -> bool:
        code = "" if status < 400 else json.loads(content)["error"]["code"]
        self._responses[f"{status} {code}".strip()] += 1
        assert status < 400 or status == 410 or (status == 503 and code in ACCEPTED_503_CODES), (
            f"{what}: {status} {content[:300]!r}"
        )
        return status == 200


class Clients:
    """All clients. The first failure of one ends them all, and `close` raises it."""

    def __init__(
        self, port: int, log: Path, verifier: ResponseVerifier, is_restarting: Callable[[], bool], seed: int
    ) -> None:
        self._port, self._log, self._verifier, self._is_restarting = port, log, verifier, is_restarting
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self.responses: Counter[str] = Counter()
        loops = (
            self._look_up,
            self._predict,
            self._take_snapshots,
            self._read_events,
            self._follow,
            self._follow_http,
        )
        self._threads = [
            threading.Thread(target=self._repeat, args=(loop, np.random.default_rng([seed, number])))
            for number, loop in enumerate(loops)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_failed(self) -> bool:
        """Return True once a client has failed."""
        return bool(self._failures)

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=300)
            assert not thread.is_alive(), f"{thread.name} hangs"
        if self._failures:
            raise self._failures[0]

    def _repeat(self, step: Callable[[Client, np.random.Generator], None], random: np.random.Generator) -> None:
        client = Client(self._port, self._is_restarting, self.responses)
        try:
            while not self._stopping.wait(PAUSE_SECONDS):
                step(client, random)
        except BaseException as failure:
            self._failures.append(failure)
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
        response = client.request("POST", f"/v1/embeddings/{feature}", encode_request(kind, ids), **headers)
        if response is not None:
            received, content = response
            rows, status = decode_response(kind, content, count)
            self._verifier.check_rows(kind, int(received["x-springtide-version"]), feature, ids, rows, status)

    def _predict(self, client: Client, random: np.random.Generator) -> None:
        instances = [make_click(7, int(offset)) for offset in random.integers(0, 1_000, random.integers(1, 30))]
        body = json.dumps({"instances": instances}).encode()
        if (response := client.request("POST", "/v1/predict", body)) is not None:
            document = json.loads(response[1])
            self._verifier.check_predictions("predict", document["version"], instances, document["predictions"])

    def _take_snapshots(self, client: Client, random: np.random.Generator) -> None:
        if (response := client.request("GET", "/v1/snapshot")) is not None:
            received, content = response
            version = int(received["x-springtide-version"])
            tensors, metadata = decode_tensors(content)
            assert json.loads(metadata["manifest"])["version"] == version
            own = np.flatnonzero(tensors["rows.feature"] == 0)[:200]
            rows, ids = tensors["rows.value"][own], tensors["rows.id"][own].tolist()
            self._verifier.check_rows("snapshot", version, "user_id", ids, rows, np.zeros(len(own), np.uint8))
        self._stopping.wait(0.5)

    def _read_events(self, client: Client, random: np.random.Generator) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        last = 0
        try:
            connection.request("GET", "/v1/events")
            response = connection.getresponse()
            self.responses[f"{response.status}"] += 1
            while not self._stopping.is_set() and (line := response.readline()):
                if line.startswith(b"id: "):
                    assert int(line[4:]) >= last, "event ids decrease"
                    last = int(line[4:])
        except (OSError, http.client.HTTPException):
            assert last or self._is_restarting(), "no events"
        finally:
            connection.close()

    def _follow(self, client: Client, random: np.random.Generator) -> None:
        self._use_hot_model("directory", str(self._log), random)

    def _follow_http(self, client: Client, random: np.random.Generator) -> None:
        self._use_hot_model("http", f"http://127.0.0.1:{self._port}", random)

    def _use_hot_model(self, name: str, source: str, random: np.random.Generator) -> None:
        """Open a HotModel, use it for a while, close it."""
        try:
            model = HotModel(source, cache_bytes="64MiB", wait_seconds=120.0)
        except SpringtideError:
            assert self._is_restarting(), f"no HotModel from {source}"
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
                    self._verifier.check_rows(f"HotModel, {name}", before, "user_id", users.tolist(), rows, status)
                    self._verifier.check_predictions(f"HotModel, {name}", before, instances, predictions)


def encode_request(kind: str, ids: list[Any]) -> bytes:
    """Return the body of a lookup of these ids."""
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
    """Return a response's rows, float32 (K, D), NaN where there is none, and its status codes, uint8 (K,)."""
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
