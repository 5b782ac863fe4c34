"""A peer in an interpreter of its own: started beside us, asked by a pipe, timed by its own clock.

Where its venv is missing (`tests/bench/peers/install.sh` makes them) it is named as missing and nothing is claimed.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).parent / "peers"
VENVS = Path(os.environ.get("SPRINGTIDE_BENCH_PEERS", "~/.cache/springtide-bench")).expanduser()


def saved(folder: Path, name: str, array: npt.NDArray[Any]) -> str:
    """The path of an array that a peer may load."""
    np.save(folder / f"{name}.npy", array)
    return str(folder / f"{name}.npy")


class Peer:
    """One child; `call` sends a name and arguments and waits for the value."""

    def __init__(self, venv: str, *, threads: int, log: IO[str] | None = None) -> None:
        self.name = venv
        python = VENVS / venv / "bin" / "python"
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "PEER_THREADS")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        answers, to_us = os.pipe()
        self._child = subprocess.Popen(
            [str(python), "-W", "ignore", str(FOLDER / f"{venv}_peer.py")],
            stdin=subprocess.PIPE,
            stdout=log or subprocess.DEVNULL,
            stderr=log or subprocess.DEVNULL,
            text=True,
            pass_fds=(to_us,),
            env=environment | dict.fromkeys(variables, str(threads)) | {"PEER_ANSWERS": str(to_us)},
        )
        os.close(to_us)
        self._answers = os.fdopen(answers, encoding="utf-8")

    def call(self, function: str, **arguments: Any) -> Any:
        """RuntimeError with the peer's own traceback where it failed."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"call": function, "arguments": arguments}) + "\n")
        self._child.stdin.flush()
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the peer {self.name} ended with {self._child.wait()}: run its script to see why")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the peer {self.name} failed in {function}:\n{answer['error']}")
        return answer["value"]

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._answers.close()
        self._child.wait()


class Peers:
    """The contenders of a benchmark that live in venvs: which are there, which are missing, which versions."""

    def __init__(self, venv_of: Mapping[str, str], *, threads: int, log: IO[str] | None = None) -> None:
        self.threads = threads
        ready = [venv for venv in dict.fromkeys(venv_of.values()) if (VENVS / venv / ".ready").exists()]
        self._children = {venv: Peer(venv, threads=threads, log=log) for venv in ready}
        self.installed = {name: self._children[venv] for name, venv in venv_of.items() if venv in ready}
        self.versions: dict[str, str] = {name: "missing" for name in venv_of if name not in self.installed}
        for peer in self._children.values():
            self.versions |= peer.call("versions")

    def tell(self, function: str, **arguments: Any) -> None:
        """The same to every child."""
        for peer in self._children.values():
            peer.call(function, **arguments)

    def contenders(self, amount: float, function: str, **arguments: Any) -> dict[str, Callable[[], float]]:
        """What `alternate` wants, by name: amount per second of the peer's call, by the peer's own clock."""

        def rate(name: str) -> float:
            return float(amount / self.installed[name].call(function, peer=name, **arguments)["seconds"])

        return {name: partial(rate, name) for name in self.installed}

    def close(self) -> None:
        for peer in self._children.values():
            peer.close()

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
