"""Compare the rows of a log and of a server with those of the trainer's table."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from tests.bench.harness.report import fail
from tests.bench.log.trainers import LoggedTrainer
from tests.bench.workloads.clicks import CATEGORICAL, IDS_PER_FEATURE

IDS = np.arange(0, IDS_PER_FEATURE, 17)
PATIENCE_SECONDS = 60.0


def check_rows(trainer: LoggedTrainer) -> None:
    """Check that a follower of the log reads the table's rows bitwise."""
    follower = Follower(LogDirectory(trainer.log_path))
    try:
        follower.poll()
        view = follower.view
        if view is None or view.version != trainer.trainer.log.last_encoded.number:
            fail("a follower does not reach the newest version")
        for feature in (CATEGORICAL[0], CATEGORICAL[-1]):
            number = trainer.trainer.config.schema.number(feature)
            rows_ND, status_N = view.lookup(np.full(len(IDS), number, np.uint16), IDS)
            known = status_N == 0
            if not known.any() or not same(trainer.rows(feature, IDS[known]), rows_ND[known]):
                fail(f"rows of {feature} in the log")
    finally:
        follower.close()


def check_served(trainer: LoggedTrainer, port: int) -> None:
    """Check that the server returns the table's rows bitwise."""
    url, last = f"http://127.0.0.1:{port}", trainer.trainer.log.last_encoded
    assert last is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while served_version(url) != last.number:
        if time.monotonic() > deadline:
            fail("the server does not reach the newest version")
        time.sleep(0.05)
    headers = {"Content-Type": "application/octet-stream", "Accept": "application/octet-stream"}
    feature = CATEGORICAL[0]
    request = urllib.request.Request(f"{url}/v1/embeddings/{feature}", IDS.astype("<i8").tobytes(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        body = answer.read()
    dim = trainer.trainer.config.table.dim
    rows_ND = np.frombuffer(body, "<f4", len(IDS) * dim).reshape(-1, dim)
    known = np.frombuffer(body, np.uint8, len(IDS), rows_ND.nbytes) == 0
    if not known.any() or not same(trainer.rows(feature, IDS[known]), rows_ND[known]):
        fail(f"rows of {feature} at the server")


def served_version(url: str) -> int | None:
    """Return the server's version; None while it is not ready."""
    try:
        with urllib.request.urlopen(f"{url}/v1/versions/latest", timeout=PATIENCE_SECONDS) as answer:
            return int(json.loads(answer.read())["version"])
    except (urllib.error.URLError, ConnectionError):
        return None


def same(mine: Any, theirs: Any) -> bool:
    """Return True if the arrays are bitwise equal."""
    return np.array_equal(np.ascontiguousarray(mine).view(np.uint32), np.ascontiguousarray(theirs).view(np.uint32))
