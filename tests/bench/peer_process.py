"""A peer in an interpreter of its own: started beside us, asked by a pipe, timed by its own clock.

Where its venv is missing (`tests/bench/peers/install.sh` makes them) the peer is named as missing and nothing is claimed.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

FOLDER = Path(__file__).parent / "peers"
VENVS = Path(os.environ.get("SPRINGTIDE_BENCH_PEERS", "~/.cache/springtide-bench")).expanduser()


class PeerMissing(Exception):
    """There is no such venv: say so, and make no claim."""


class Peer:
    """One child; `call` sends a name and arguments and waits for the value."""

    def __init__(self, venv: str, *, threads: int, venvs: Path = VENVS, log: IO[str] | None = None) -> None:
        self.name = venv
        python = venvs / venv / "bin" / "python"
        if not (venvs / venv / ".ready").exists():
            raise PeerMissing(f"{venv} is not installed in {venvs}: tests/bench/peers/install.sh {venvs} {venv}")
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

    def rate(self, amount: float, function: str, **arguments: Any) -> Callable[[], float]:
        """What `alternate` wants: amount per second of the peer's call, by the peer's clock."""
        return lambda: amount / self.call(function, **arguments)["seconds"]

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._answers.close()
        self._child.wait()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
