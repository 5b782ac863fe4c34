"""A user's folder with a springtide.toml, the processes of `springtide` commands in it, and an embedded broker."""

import json
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.support.apache_kafka import shared_node
from tests.support.broker import USES_APACHE
from tests.support.config import CLICKS, edit_config, write_config
from tests.support.kafka import configure_topic, create_topic, produce, read_topic
from tests.support.ports import free_port
from tests.support.process_pool import ForkedProcess, ProcessPool
from tests.support.waiting import wait_until

ADMIN_TOKEN = "let-me-in"
COMMAND_SECONDS = 600.0
SETTINGS = {
    "features": {"item_id": {}, "user_id": {}},
    "table": {"dim": 8, "device_bytes": "32MiB"},
    "train": {"batch_size": 64, "max_wait_seconds": 0.05},
    "log": {"publish_seconds": 0.1, "onnx": False},
}


class Workspace:
    """One folder and the processes started in it; `close` ends them."""

    COMMANDS = "/v1/commands"

    def __init__(self, folder: Path, process_pool: ProcessPool) -> None:
        self.folder, self._pool = folder, process_pool
        self.port = free_port()
        self.processes: list[ForkedProcess] = []
        self.config = write_config(folder / "springtide.toml", CLICKS, SETTINGS, {"serve": {"port": self.port}})

    @property
    def log(self) -> Path:
        return self.folder / "var" / "test" / "log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def configure(self, changes: dict[str, Any]) -> None:
        """Change keys of springtide.toml."""
        edit_config(self.config, changes)

    # processes

    def start(self, *command: str, environment: dict[str, str] | None = None) -> ForkedProcess:
        """Start `springtide COMMAND`; its output goes to files NUMBER-COMMAND.out and .err."""
        out, err = self._outputs(command[0])
        environment = {"SPRINGTIDE_TOKENS": f"admin={ADMIN_TOKEN}"} | (environment or {})
        pid = self._pool.start(list(command), cwd=self.folder, out=out, err=err, environment=environment)
        self.processes.append(ForkedProcess(self._pool, pid))
        return self.processes[-1]

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run `springtide COMMAND` to its end."""
        out, err = self._outputs(command[0])
        status = self.start(*command).wait(COMMAND_SECONDS)
        return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())

    def _outputs(self, name: str) -> tuple[Path, Path]:
        number = len(self.processes)
        return self.folder / f"{number}-{name}.out", self.folder / f"{number}-{name}.err"

    def train_until_end(self, *options: str) -> dict[str, Any]:
        """Run `springtide train --until-end`; return the status that it prints last."""
        done = self.run("train", "--until-end", *options)
        assert done.returncode == 0, done.stderr[-3000:]
        status: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return status

    def stop(self, process: ForkedProcess, *, by: signal.Signals = signal.SIGTERM) -> int:
        """Signal a process and wait for its end; return its exit status."""
        process.send_signal(by)
        return process.wait(timeout=COMMAND_SECONDS)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait(timeout=120)

    # broker

    def start_broker(self) -> str:
        """Start the embedded broker, or take Apache Kafka without the topics of other tests; return its address."""
        if USES_APACHE:
            address = shared_node().address
            shared_node().delete_topics("clicks", "clicks.dead")
            for topic in ("clicks", "clicks.dead"):
                create_topic(address, topic)
                configure_topic(address, topic, {"max.message.bytes": str(4 << 20)})
            self.configure({"source": {"bootstrap_servers": address}})
            return address
        self.start("broker")
        return wait_until(self.broker_address, "the broker's address")

    def broker_address(self) -> str | None:
        if USES_APACHE:
            return shared_node().address
        path = self.log / "broker.json"
        return json.loads(path.read_text())["address"] if path.exists() else None

    def produce(self, values: list[bytes | None]) -> None:
        """Append messages to the one partition of the topic `clicks`, in order."""
        produce(self.broker_address() or "", "clicks", values)

    def consume(self, topic: str) -> list[Any]:
        """Return every record of a topic's one partition, with its headers."""
        return read_topic(self.broker_address() or "", topic)

    # server

    def start_server(self) -> None:
        """Start `springtide serve` and wait until it is ready."""
        self.start("serve")
        wait_until(lambda: self.get("/readyz"), "the server's readiness")

    def get(self, path: str) -> dict[str, Any] | None:
        """Return a route's JSON, or None while it does not answer 200."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as response:
                document: dict[str, Any] = json.loads(response.read())
                return document
        except OSError:
            return None

    def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, token: str | None = ADMIN_TOKEN
    ) -> tuple[int, dict[str, Any]]:
        """Send JSON with a bearer token; return the status code and the response's JSON."""
        headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def submit(self, method: str, path: str, body: dict[str, Any]) -> str:
        """Send a command to the trainer; return the path of its status."""
        code, accepted = self.request(method, path, body)
        assert (code, accepted["state"]) == (202, "accepted"), accepted
        return f"{self.COMMANDS}/{accepted['command']}"

    def status(self) -> dict[str, Any]:
        """Return the server's /v1/status; empty while it does not answer."""
        return self.get("/v1/status") or {}

    # log

    def pending_commands(self) -> list[Path]:
        """Return the files of commands whose versions are not durable yet."""
        return [path for path in (self.log / "commands").iterdir() if not path.name.startswith(".")]

    def samples_trained(self) -> int:
        """Return the newest status file's count; 0 before there is one."""
        statuses = sorted(self.log.glob("status-*.json"))
        return max((json.loads(path.read_text()).get("samples_trained", 0) for path in statuses), default=0)


def read_view(log: Path) -> View:
    """Return the newest version that the log holds."""
    directory = LogDirectory(log)
    view = View.open(directory.newest_base())
    for record in directory.records(view.head):
        view = view.apply(record).merged()
    return view
