"""A command of ours in a process of its own that works only while it is asked to, so that others can be timed alone."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class PausableProcess:
    """`springtide COMMAND`, in a session of its own as under `springtide run`; stopped except within `running`."""

    def __init__(self, command: Sequence[str], out: Path) -> None:
        self.command, self.out = list(command), out
        with out.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app", *command], stdout=file, stderr=file, start_new_session=True
            )
        self._send(signal.SIGSTOP)

    def __enter__(self) -> "PausableProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @contextmanager
    def running(self) -> Iterator[None]:
        """It goes on meanwhile; RuntimeError with its last words where it has ended."""
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)

    def end(self) -> None:
        """Killed: it keeps nothing that the log has not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"{' '.join(self.command)} ended: {self.out.read_text()[-2000:]}")
        os.kill(self._process.pid, number)


def free_port() -> int:
    """A port of this machine's loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
