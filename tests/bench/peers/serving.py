"""The peer's side of the pipe: a line of JSON in, a line out. Knows numpy only, runs in the peer's own interpreter.

A call names a function and its arguments; arrays travel as .npy files in a folder that both sides know.
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
    """An array of the benchmark's, copied into this process: a peer reads no page cache while it is timed."""
    return np.ascontiguousarray(np.load(path))


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU seconds of one call, all threads of this process counted."""
    cpu, start = time.process_time(), time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def serve(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Answers until standard input ends."""
    # libraries print on standard output while they are imported: answers have a pipe of their own
    answers = os.fdopen(int(os.environ["PEER_ANSWERS"]), "w", encoding="utf-8")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": functions[request["call"]](**request["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
