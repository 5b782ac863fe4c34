"""HTTP requests prepared as bytes, and wrk, which sends them repeatedly."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

# wrk's script: send the requests of a file in turn; each is preceded by its length in four bytes
SCRIPT = """
local requests, number = {}, 0
init = function(arguments)
  local file = io.open(arguments[1], "rb")
  while true do
    local head = file:read(4)
    if not head then break end
    local a, b, c, d = head:byte(1, 4)
    requests[#requests + 1] = file:read(a + 256 * (b + 256 * (c + 256 * d)))
  end
end
request = function()
  number = number % #requests + 1
  return requests[number]
end
"""


class LoadResult(NamedTuple):
    """The result of a load generator."""

    per_second: float
    p50_ms: float
    p99_ms: float


class Loads:
    """Runs of load generators by name, and their results; the first run of each is a warm-up."""

    def __init__(self, runs: Mapping[str, Callable[[], LoadResult]]) -> None:
        self.runs = runs
        self._results: dict[str, list[LoadResult]] = {name: [] for name in runs}

    def __getitem__(self, name: str) -> list[LoadResult]:
        """Return the results after the warm-up."""
        return self._results[name][1:]

    def rate(self, name: str) -> float:
        """Run a load; return its requests per second."""
        self._results[name].append(self.runs[name]())
        return self._results[name][-1].per_second

    def describe(self, name: str) -> str:
        """Return the latencies of the median run."""
        p50, p99 = (median(getattr(load, part) for load in self[name]) for part in ("p50_ms", "p99_ms"))
        return f"{name}: p50 {p50:.3g} ms, p99 {p99:.3g} ms (worst run {max(load.p99_ms for load in self[name]):.3g})"


def post(path: str, body: bytes, media_type: str) -> bytes:
    """Return a POST request as wrk would write it."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Wrk:
    """One thread of wrk; ValueError if it is not installed."""

    def __init__(self, folder: Path, *, connections: int, on_core: list[str]) -> None:
        if shutil.which("wrk") is None:
            raise ValueError("wrk is not installed")
        self._folder, self._connections, self._on_core = folder, connections, on_core
        self._script = folder / "wrk.lua"
        self._script.write_text(SCRIPT)

    @property
    def version(self) -> str:
        """Return the program's version."""
        text = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout
        return text.split()[1]

    def save(self, name: str, requests: Sequence[bytes]) -> Path:
        """Save requests for `measure`."""
        path = self._folder / f"{name}.requests"
        path.write_bytes(b"".join(len(request).to_bytes(4, "little") + request for request in requests))
        return path

    def measure(self, port: int, requests: Path, seconds: float) -> LoadResult:
        """Run the load; RuntimeError if a response is missing or not 200."""
        # wrk takes whole seconds only, and reports when it is interrupted
        command = [*self._on_core, "wrk", "-t1", f"-c{self._connections}", "-d60s", "--latency"]
        command += ["-s", str(self._script), f"http://127.0.0.1:{port}", "--", str(requests)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as wrk:
            time.sleep(seconds)
            wrk.send_signal(signal.SIGINT)
            text, _ = wrk.communicate()
        if "Non-2xx" in text or "Socket errors" in text:
            raise RuntimeError(f"wrk saw failures:\n{text}")
        rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
        waits = {share: _ms(text, share) for share in ("50", "99")}
        assert rate is not None
        return LoadResult(float(rate[1]), waits["50"], waits["99"])


def _ms(text: str, share: str) -> float:
    found = re.search(rf"^\s+{share}%\s+([\d.]+)(us|ms|s)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1]) * SECONDS[found[2]] * 1000
