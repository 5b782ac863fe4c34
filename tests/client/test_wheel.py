"""The wheel alone suffices for a service whose own package is called `app`: the shipped example, unchanged."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.waiting import wait_until
from tests.support.wheels import CLIENT, build_wheel

SERVICE = Path(__file__).parents[2] / "deploy" / "examples" / "service"
# runs the service as uvicorn's command does, and prints at the end what it imported
RUN = """
import json, sys
import uvicorn
import app.main

try:
    uvicorn.Server(uvicorn.Config(app.main.service, port=int(sys.argv[1]), log_level="warning")).run()
except KeyboardInterrupt:
    pass
strange = {"stream", "embeddings", "kernels", "numba", "rocksdbpy", "cupy", "kafka"}
print(json.dumps({
    "files": {name: sys.modules[name].__file__ for name in ("app", "springtide_client")},
    "ours": sorted(strange & set(sys.modules)),
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built and unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(CLIENT, folder)
    with zipfile.ZipFile(wheel) as files:
        assert "springtide_client/py.typed" in files.namelist()
        files.extractall(folder / "installed")
    return folder / "installed"


class Service:
    """The example, running."""

    def __init__(self, installed: Path, **environment: str) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(self.port)],
            cwd=SERVICE,
            env=ours | {"PYTHONPATH": f"{SERVICE}:{installed}", "OMP_NUM_THREADS": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, path: str, body: object = None) -> tuple[int, object, str | None]:
        """Status, document, the model's version."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.loads(answer.read()), answer.headers["X-Model-Version"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read()), None

    def versions(self) -> dict[str, int]:
        """By model; {} before it answers."""
        assert self.process.poll() is None, self.process.stderr.read()
        try:
            return {name: model["version"] for name, model in self.ask("/models")[1].items()}
        except OSError:
            return {}

    def end(self) -> dict[str, object]:
        """Return the last line that it printed."""
        self.process.send_signal(signal.SIGINT)
        said, complaint = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, complaint
        return json.loads(said)


@pytest.fixture
def logs(make_log) -> dict[str, object]:
    """Of two models: one loves item 1, the other item 2."""
    found = {"clicks": make_log(), "orders": make_log()}
    for seed, log in enumerate(found.values(), start=1):
        log.now_ms = time.time_ns() // 1_000_000
        append_love(log, seed)
    return found


def append_love(log, item: int) -> int:
    """A version after which this item is worth most."""
    weight = np.zeros((2, 18), np.float32)
    weight[:, log.dim : 2 * log.dim] = 1.0
    rows = {(1, other): (np.full(log.dim, 5.0 if other == item else -5.0, np.float32), 1, 1) for other in (1, 2)}
    return log.append(rows, dense={"linear.weight": weight})


@pytest.fixture
def service(installed, logs) -> Iterator[Service]:
    """Over both logs."""
    running = Service(installed, CLICKS=str(logs["clicks"].path), ORDERS=str(logs["orders"].path))
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def test_two_models_work_in_a_service_whose_package_is_called_app(service, logs, installed) -> None:
    items = [{"user_id": 1, "item_id": 1}, {"user_id": 1, "item_id": 2}]
    wait_until(service.versions)
    assert service.ask("/rank/clicks", items) == (200, [0, 1], str(logs["clicks"].number))
    assert service.ask("/rank/orders", items) == (200, [1, 0], str(logs["orders"].number))
    number = append_love(logs["orders"], 1)
    wait_until(lambda: service.versions()["orders"] == number)
    assert service.ask("/rank/orders", items) == (200, [0, 1], str(number))
    assert service.ask("/rank/clicks", items)[2] == str(logs["clicks"].number)  # the other one stayed
    assert service.ask("/rank/clicks", [{}, {"age": "old"}])[0] == 422
    assert service.ask("/rank/nothing", [])[0] == 404
    logs["clicks"].now_ms -= 120_000
    logs["clicks"].append()
    wait_until(lambda: service.ask("/rank/clicks", items)[0] == 503)
    assert service.ask("/rank/orders", items)[0] == 200

    said = service.end()
    assert said["files"]["app"].startswith(str(SERVICE))
    assert said["files"]["springtide_client"].startswith(str(installed))
    assert said["ours"] == []
