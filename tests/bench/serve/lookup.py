"""serve.lookup: rows of 64 ids x dim 64 over 16 connections to one process, in every format, also beside a trainer."""

import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.bench.harness.report import Case, alternate, arguments, report
from tests.bench.harness.thread_times import ProcessTimes
from tests.bench.serve.contenders import LookupContenders
from tests.bench.serve.http_load import Loads

P99_MS = 1.5
LEAST_LEARNED = 500.0  # clicks per second; with fewer the trainer hardly ran, and no figure is reported


def main() -> None:
    options = arguments(__doc__)
    num_rows, repeats, seconds = (20_000, 2, 0.3) if options.quick else (1_000_000, 5, 0.6)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = LookupContenders(folder, num_rows, seconds, stack)
        contenders.add_ours()
        contenders.add_web(options.peers / "web/bin/python")
        contenders.add_redis(options.peers)
        contenders.add_computing("raw", "json")
        trainer = contenders.add_training("raw", "json")  # last, because it changes the rows

        times = {name: ProcessTimes({"server": pid}) for name, pid in contenders.pids.items()}
        loads = Loads(contenders.runs)

        def rate(name: str) -> float:
            if name not in times:
                return loads.rate(name)
            per_second = times[name].measure(partial(loads.rate, name), 0.0)
            times[name].amount += per_second * seconds
            return per_second

        rates = alternate({name: partial(rate, name) for name in contenders.runs}, repeats=repeats)
        learned = trainer.per_second()
    packages = ("uvicorn", "uvloop", "httptools", "numpy", "numba", "msgspec")
    report("serve.lookup", cases_of(rates, loads, learned), options, packages=packages, peers=contenders.versions)
    for name in rates:
        print(loads.describe(name))
    for name in ("raw", "raw, training"):
        print(f"{name}, seconds of a processor per million requests: " + "; ".join(times[name].lines(per=1e6)))
    print(f"the trainer learned {learned:,.0f} clicks/s in what the load left of the other core")


def cases_of(rates: dict[str, list[float]], loads: Loads, learned: float) -> list[Case]:
    """Return the comparisons and the required ratios."""

    def peers(*names: str) -> dict[str, list[float]]:
        return {name: rates[name] for name in names if name in rates}

    limit = statistics.median(rates["empty response"]) if "empty response" in rates else None
    waits = [1 / load.p99_ms for load in loads["raw"]]
    bound = {f"{P99_MS} ms": [1 / P99_MS] * len(waits)}
    unit = "requests/s"
    beside = [
        Case(
            f"{form} while training",
            unit,
            rates[f"{form}, training"],
            peers(form) if learned >= LEAST_LEARNED else {},
            needed=0.85,
            limit=statistics.median(rates[f"{form}, computing"]),
        )
        for form in ("raw", "json")
    ]
    return [
        Case("raw", unit, rates["raw"], peers("Redis MGET"), needed=1.5, limit=limit),
        Case("raw, its p99", "1/ms", waits, bound, needed=1.0, contest=False),
        Case("json beside FastAPI's default", unit, rates["json"], peers("FastAPI"), needed=25.0),
        Case("json beside orjson by hand", unit, rates["json"], peers("FastAPI + orjson"), needed=1.0),
        Case("msgpack", unit, rates["msgpack"], {}, limit=limit),
        Case("arrow", unit, rates["arrow"], {}, limit=limit),
        *beside,
    ]
