"""Processes that a benchmark starts: our modules and commands, and contenders that answer calls over a pipe."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

PEER_SCRIPTS = Path(__file__).parents[1] / "peers"


def checkout_environment(checkout: Path) -> dict[str, str]:
    """Return the environment in which a checkout's packages are imported, with one OpenMP thread."""
    folders = (checkout / "deploy/package", checkout / "deploy/client", checkout)
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}


def save_array(folder: Path, name: str, array: npt.NDArray[Any]) -> str:
    """Save an array for another process to load; return its path."""
    np.save(folder / f"{name}.npy", array)
    return str(folder / f"{name}.npy")


class ContenderProcess:
    """A process that answers calls over a pipe (`peers/serving.py`) and measures by its own clock."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], log: IO[str] | None) -> None:
        self.name = name
        answers, to_us = os.pipe()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log or subprocess.DEVNULL,
            stderr=log or subprocess.DEVNULL,
            text=True,
            pass_fds=(to_us,),
            env=dict(environment) | {"PEER_ANSWERS": str(to_us)},
        )
        os.close(to_us)
        self._answers = os.fdopen(answers, encoding="utf-8")

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function of the process and return its value; RuntimeError with its traceback if it fails."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"call": function, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()} in {function}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name} failed in {function}:\n{answer['error']}")
        return answer["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._answers.close()
        self._process.wait()


class PausableProcess:
    """`springtide COMMAND`, stopped by SIGSTOP except within `running`, so that others can be timed alone."""

    def __init__(self, command: Sequence[str], out: Path) -> None:
        self.command, self.out = list(command), out
        with out.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "springtide", *command], stdout=file, stderr=file, start_new_session=True
            )
        self._send(signal.SIGSTOP)

    def __enter__(self) -> "PausableProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @contextmanager
    def running(self) -> Iterator[None]:
        """Resume it within the context; RuntimeError with the end of its output if it has exited."""
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)

    def end(self) -> None:
        """Kill it; it holds no state beyond the log."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"{' '.join(self.command)} ended: {self.out.read_text()[-2000:]}")
        os.kill(self._process.pid, number)
