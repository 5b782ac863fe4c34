"""A contender in a process of its own: asked by a pipe (`peers/serving.py`), timed by its own clock."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt


def saved(folder: Path, name: str, array: npt.NDArray[Any]) -> str:
    """The path of an array that a child may load."""
    np.save(folder / f"{name}.npy", array)
    return str(folder / f"{name}.npy")


class ContenderProcess:
    """`call` sends a name and arguments and waits for the value."""

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
        """RuntimeError with the child's own traceback where it failed."""
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
