"""Contenders with virtual environments of their own, made by `tests/bench/peers/install.sh`.

A contender that is not installed is reported as missing.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from tests.bench.harness.processes import PEER_SCRIPTS, ContenderProcess

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "PEER_THREADS")


class Peers:
    """The installed contenders and their versions."""

    def __init__(self, venv_of: Mapping[str, str], *, venvs: Path, threads: int, log: IO[str] | None = None) -> None:
        self.threads = threads
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= dict.fromkeys(THREADS, str(threads))
        self._children = {
            venv: ContenderProcess(
                venv, [str(venvs / venv / "bin/python"), str(PEER_SCRIPTS / f"{venv}_peer.py")], environment, log
            )
            for venv in dict.fromkeys(venv_of.values())
            if (venvs / venv / ".ready").exists()
        }
        self.installed = {name: self._children[venv] for name, venv in venv_of.items() if venv in self._children}
        self.versions: dict[str, str] = {name: "missing" for name in venv_of if name not in self.installed}
        for peer in self._children.values():
            self.versions |= peer.call("versions")

    def call_all(self, function: str, **arguments: Any) -> None:
        """Call a function in every process."""
        for peer in self._children.values():
            peer.call(function, **arguments)

    def contenders(self, amount: float, function: str, **arguments: Any) -> dict[str, Callable[[], float]]:
        """Return a function per peer for `alternate`: the amount per second of its call, by the peer's own clock."""

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
