"""Runs broker, simulator, trainer and server together until Ctrl-C or for some seconds."""

import json
import shutil
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

from springtide.app.config.load import Config, load_config
from springtide.app.errors import UserError
from springtide.app.processes.supervisor import BrokerSupervisor, ChildSpec, Supervisor
from springtide.app.scores.best_auc import read_best_auc
from springtide.app.tools.simulated_events import KEYS, fits_simulated_events
from springtide.app.tools.status_text import status_line
from springtide.app.version_log.write.trainer_lock import wait_until_free
from springtide.kernels.kernel_store import COMPILING
from springtide_client.errors import SpringtideError

READY_SECONDS = 120.0
READY_COMPILING_SECONDS = 600.0  # where kernels are compiled first
CHECK_SECONDS = 0.1
SHOW_SECONDS = 1.0
PLAIN_INTERVAL_SECONDS = 10.0  # where there is no terminal on which to redraw the line
MAX_OUTPUT_BYTES = 4 << 20  # of a child's file
FIELDS = (
    *("user_id", "item_id", "segment", "country", "device", "placement", "category", "publisher"),
    *("tags", "price", "item_age_hours"),
)


class DemoError(SpringtideError):
    """The demo did not become ready."""


class Demo:
    """One run of the demo."""

    def __init__(
        self, config_path: Path | None, *, rate: float | None, port: int | None, debug: bool, join: bool = False
    ) -> None:
        """`join`: impressions and clicks come apart, and are joined."""
        if join and config_path is not None:
            raise UserError("--join has a configuration of its own: leave out --config, or --join if it has a [join]")
        self.config_path = config_path or demo_config_path(join=join)
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
        compiling: set[str] = set()

        def on_line(name: str, line: str) -> None:
            output.append(name, line)
            if COMPILING in line:
                compiling.add(name)

        self.line.print(f"starting broker, simulator, trainer and server; their output is in {output.folder}")
        window_ms = 0 if self.config.join is None else max(each.window_ms for each in self.config.join.labels)
        self.line.print(f"which usually takes {15 + window_ms // 1000} s; some minutes if kernels are compiled")
        with (
            BrokerSupervisor(self.config.source, self.config.log.path) as broker,
            Supervisor(self._children(), on_line=on_line) as supervisor,
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
                    if self._is_serving():
                        ready_at = now
                        self.line.print(f"ready after {now - began:.1f} s; the dashboard: {self.url}")
                    elif now - began > (READY_COMPILING_SECONDS if compiling else READY_SECONDS):
                        raise DemoError(f"not ready after {now - began:.0f} s: see the files in {output.folder}")
                    else:
                        names = " and ".join(sorted(compiling))
                        busy = f": {names} compile kernels, only the first time" if names else ""
                        self.line.show(f"starting, {now - began:.0f} s{busy}")
                    continue
                if now - shown >= SHOW_SECONDS:
                    shown = now
                    status = self.status() or status
                    if status is not None:
                        self.line.show(status_line(status))
                if seconds is not None and now - ready_at >= seconds:
                    break
            status = (self.status() if ready_at is not None else None) or status
            self.line.print("stopping")
        return status

    def _is_serving(self) -> bool:
        """Return True once what was learned from the first clicks is served: before, a server has nothing to show."""
        document = None if self._get("/readyz") is None else self._get("/v1/status")
        return document is not None and document.get("samples_trained", 0) > 0

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
            ChildSpec("simulate", ["simulate", *config, *self._rate, "--await-trainer"]),
        ]

    def _get(self, path: str) -> Mapping[str, Any] | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                document = json.loads(response.read() or b"{}")
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else {}


def demo_config_path(*, join: bool = False) -> Path:
    """Return the configuration that comes with the program."""
    return Path(str(files("springtide.app.tools") / ("demo_join.toml" if join else "demo.toml")))


def check_fields(config: Config) -> None:
    """Raise UserError if the schema has a field that simulated clicks do not have."""
    schema = config.schema
    wanted = [*schema.features, *schema.dense]
    unknown = [name for name in wanted if name not in FIELDS]
    if schema.labels != ("click",) or unknown or schema.timestamp not in (None, "ts"):
        fields = f"they have click, ts, {', '.join(FIELDS)}"
        raise UserError(f"{config.path} does not fit the simulator's clicks ({fields}): leave out --config")
    if config.join is not None and not fits_simulated_events(config.join):
        raise UserError(
            f"{config.path} does not fit the simulator's clicks: their [join] has a key of {', '.join(KEYS)}, and "
            '[labels.click] where = { action = "click" } or none'
        )


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


class OutputFiles:
    """Appends lines to <folder>/<name>.txt; a full file is renamed to <name>.old.txt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Return the file of a child."""
        return self.folder / f"{name}.txt"

    def append(self, name: str, line: str) -> None:
        """Append a line to the file of a child."""
        with self._lock:
            path = self.path(name)
            if path.exists() and path.stat().st_size > MAX_OUTPUT_BYTES:
                path.replace(self.folder / f"{name}.old.txt")
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


class StatusLine:
    """Redraws one line on a terminal; elsewhere prints a line every PLAIN_INTERVAL_SECONDS."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._printed_at = float("-inf")
        self._is_drawn = False

    def show(self, text: str) -> None:
        """Show the present line."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text[:width]:<{width}}")
            self._is_drawn = True
        elif self._clock() - self._printed_at >= PLAIN_INTERVAL_SECONDS:
            self._printed_at = self._clock()
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self._stream.write(f"\n{text}\n" if self._is_drawn else f"{text}\n")
        self._is_drawn = False
        self._stream.flush()
