"""Runs broker, simulator, trainer and server together until Ctrl-C or for some seconds."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from springtide.app.config.load import Config, load_config
from springtide.app.errors import UserError
from springtide.app.processes.broker_supervisor import BrokerSupervisor
from springtide.app.processes.supervisor import ChildSpec, Supervisor
from springtide.app.scores.best_auc import read_best_auc
from springtide.app.tools.demo.output_files import OutputFiles
from springtide.app.tools.demo.status_line import StatusLine, format_status
from springtide.app.version_log.write.trainer_lock import wait_until_free
from springtide_client.errors import SpringtideError

READY_SECONDS = 120.0
CHECK_SECONDS = 0.1
SHOW_SECONDS = 1.0
FIELDS = (
    *("user_id", "item_id", "segment", "country", "device", "placement", "category", "publisher"),
    *("tags", "price", "item_age_hours"),
)


class DemoError(SpringtideError):
    """The demo did not become ready."""


class Demo:
    """One run of the demo."""

    def __init__(self, config_path: Path | None, *, rate: float | None, port: int | None, debug: bool) -> None:
        self.config_path = config_path or demo_config_path()
        self.config = load_config(self.config_path)
        check_fields(self.config)
        self._rate = [] if rate is None else ["--rate", str(rate)]
        self._debug = ["--debug"] if debug else []
        self.line = StatusLine()
        if port is not None:
            check_port(self.config.serve.host, port)
        self.port = port if port is not None else choose_port(self.config.serve.host, self.config.serve.port)
        if port is None and self.port != self.config.serve.port:
            self.line.print(f"port {self.config.serve.port} is taken: this demo uses {self.port}")

    @property
    def url(self) -> str:
        """The dashboard's address, for a browser on this host."""
        host = self.config.serve.host
        return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{self.port}"

    def run(self, stopping: threading.Event, seconds: float | None) -> dict[str, Any] | None:
        """Run until `stopping`, or `seconds` after readiness; return the last status that was read while all ran.

        LogBusyError if another demo writes the log.
        """
        wait_until_free(self.config.log.path)
        output = OutputFiles(self.config.log.path.parent / "output")
        self.line.print(f"starting broker, simulator, trainer and server; their output is in {output.folder}")
        with (
            BrokerSupervisor(self.config.source, self.config.log.path) as broker,
            Supervisor(self._children(), on_line=output.append) as supervisor,
        ):
            began = time.monotonic()
            ready_at: float | None = None
            shown = 0.0
            status = None
            while not stopping.wait(CHECK_SECONDS):
                now = time.monotonic()
                broker.restart_if_dead()
                supervisor.restart_dead()
                if ready_at is None:
                    if self._get("/readyz") is not None:
                        ready_at = now
                        self.line.print(f"ready after {now - began:.1f} s; the dashboard: {self.url}")
                    elif now - began > READY_SECONDS:
                        raise DemoError(f"not ready after {READY_SECONDS:.0f} s: see the files in {output.folder}")
                    continue
                if now - shown >= SHOW_SECONDS:
                    shown = now
                    status = self.status() or status
                    if status is not None:
                        self.line.show(format_status(status, status["simulator"]["best_auc"]))
                if seconds is not None and now - ready_at >= seconds:
                    break
            status = (self.status() if ready_at is not None else None) or status
            self.line.print("stopping")
        return status

    def status(self) -> dict[str, Any] | None:
        """Return the server's status with the simulator's best AUC; None while the server does not answer."""
        document = self._get("/v1/status")
        if document is None:
            return None
        return dict(document) | {"simulator": {"best_auc": read_best_auc(self.config.log.path)}}

    def _children(self) -> list[ChildSpec]:
        config = ["--config", str(self.config_path), *self._debug]
        return [
            ChildSpec("train", ["train", *config]),
            ChildSpec("serve", ["serve", *config, "--port", str(self.port)]),
            ChildSpec("simulate", ["simulate", *config, *self._rate]),
        ]

    def _get(self, path: str) -> Mapping[str, Any] | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                document = json.loads(response.read() or b"{}")
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else {}


def demo_config_path() -> Path:
    """Return the configuration that comes with the program."""
    return Path(str(files("springtide.app.tools.demo") / "demo.toml"))


def check_fields(config: Config) -> None:
    """Raise UserError if the schema has a field that simulated clicks do not have."""
    schema = config.schema
    wanted = [*schema.features, *schema.dense]
    unknown = [name for name in wanted if name not in FIELDS]
    if schema.labels != ("click",) or unknown or schema.timestamp not in (None, "ts"):
        fields = f"they have click, ts, {', '.join(FIELDS)}"
        raise UserError(f"{config.path} does not fit the simulator's clicks ({fields}): leave out --config")


def check_port(host: str, port: int) -> None:
    """Raise UserError if the server could not listen there, before anything is started."""
    if not 1 <= port <= 65535:
        raise UserError(f"--port must be in 1..65535, not {port}")
    if choose_port(host, port) != port:
        raise UserError(f"port {port} is taken: choose another one, or leave out --port")


def choose_port(host: str, wanted: int) -> int:
    """Return the wanted port if it is free, else any free one; UserError if the host has no port to listen on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (wanted, 0):
        try:
            with socket.create_server((host, port), family=family) as listener:
                chosen: int = listener.getsockname()[1]
                return chosen
        except OSError:
            continue
    raise UserError(f"[serve] host = {host!r} is not an address of this machine: use 127.0.0.1")
