"""serve.predict: predictions at 16 connections from one process, with and without micro-batching."""

# N instances of a request
import json
import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from springtide_client.encode import encode_instances
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.bench.harness.report import Case, alternate, arguments, fail, report
from tests.bench.serve.contenders import CONNECTIONS, JSON, NUM_REQUESTS, Server, core, server_command
from tests.bench.serve.http_load import Loads, Wrk, post
from tests.bench.workloads.row_log import write_log
from tests.support.processes import our_environment

PATH = "/v1/predict"
NUM_CANDIDATES = 100
TOLERANCE = 1e-6  # the number of rows per call changes the order of additions
SERVERS: dict[str, dict[str, object]] = {
    "shared calls": {},
    "shared calls, 1 ms of waiting": {"predict_batch_timeout_ms": 1.0},
    "each alone": {"predict_max_batch_rows": 1},
}
Question = dict[str, Any]


def one_instance(random: np.random.Generator, num_rows: int) -> Question:
    """Return one instance: a user, an item with a row, an age."""
    return {
        "instances": [
            {"user_id": int(random.integers(1_000_000)), "item_id": int(random.integers(num_rows)), "age": 30}
        ]
    }


def one_context(random: np.random.Generator, num_rows: int) -> Question:
    """Return one context and its candidates."""
    items = random.integers(0, num_rows, NUM_CANDIDATES).tolist()
    context = {"user_id": int(random.integers(1_000_000)), "age": 30}
    return {"context": context, "candidates": [{"item_id": item} for item in items]}


def check(name: str, view: View, question: Question, answer: bytes) -> None:
    """Check a response against the model in this process."""
    instances_N = question.get("instances") or [question["context"] | own for own in question["candidates"]]
    expected_N = view.predict(encode_instances(view.schema, instances_N))[:, 0]
    found_N = [prediction["click"] for prediction in json.loads(answer)["predictions"]]
    if not np.allclose(found_N, expected_N, rtol=0, atol=TOLERANCE):
        fail(f"the predictions of {name}")


def main() -> None:
    options = arguments(__doc__)
    num_rows, repeats, seconds = (20_000, 2, 0.5) if options.quick else (1_000_000, 5, 1.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = write_log(folder, num_rows)
        view = View.open(LogDirectory(log).bases()[-1])
        wrk = Wrk(folder, connections=CONNECTIONS, on_core=core(1))
        random = np.random.default_rng(0)
        asked = {
            "1 instance": [one_instance(random, num_rows) for _ in range(NUM_REQUESTS)],
            f"1 context, {NUM_CANDIDATES} candidates": [
                one_context(random, num_rows) for _ in range(NUM_REQUESTS // 8)
            ],
        }
        runs = {}
        for server_name, settings in SERVERS.items():
            server = Server(server_command(log, settings), our_environment())
            stack.callback(server.close)
            for form, questions in asked.items():
                bodies = [json.dumps(question).encode() for question in questions]
                for question, body in zip(questions[:8], bodies, strict=False):
                    check(server_name, view, question, server.ask(PATH, body, JSON))
                requests = wrk.save(f"{server_name}-{form}", [post(PATH, body, JSON) for body in bodies])
                runs[f"{form}: {server_name}"] = partial(wrk.measure, server.port, requests, seconds)

        loads = Loads(runs)
        rates = alternate({name: partial(loads.rate, name) for name in runs}, repeats=repeats)
    cases = [
        Case(f"{form}: {name}", "requests/s", rates[f"{form}: {name}"], {"each alone": rates[f"{form}: each alone"]})
        for form in asked
        for name in SERVERS
        if name != "each alone"
    ]
    report("serve.predict", cases, options, packages=("torch", "uvicorn", "uvloop", "numpy", "msgspec"))
    for name in rates:
        print(loads.describe(name))
    calls, together = (statistics.median(rates[f"{form}: shared calls"]) for form in asked)
    print(f"{NUM_CANDIDATES} candidates in one request instead of {NUM_CANDIDATES}: ", end="")
    print(f"{together * NUM_CANDIDATES:,.0f} scored a second, not {calls:,.0f}")
