"""The contender's side of the pipe: one line of JSON per call and per result. Needs numpy only.

A call names a function and its arguments; arrays are passed as .npy files. Runs in the contender's own interpreter.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def load(path: str) -> np.ndarray:
    """Load an array into this process's own memory, so that no page cache is read while it is timed."""
    return np.ascontiguousarray(np.load(path))


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Return the wall and CPU seconds of one call, over all threads of this process."""
    cpu, start = time.process_time(), time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def serve(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Answer calls until standard input ends. `functions`: by name; a module passes its `globals()`."""
    # libraries print to standard output when imported, so results have a pipe of their own
    answers = os.fdopen(int(os.environ["PEER_ANSWERS"]), "w", encoding="utf-8")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": functions[request["call"]](**request["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
