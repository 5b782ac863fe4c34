"""serve.parts: 64 ids x dim 64 of a table in two parts, through a router, beside one server that holds everything."""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.bench.harness.report import Case, alternate, arguments, report
from tests.bench.serve.contenders import LookupContenders
from tests.bench.serve.http_load import LoadResult
from tests.bench.serve.lookup import latency

NUM_PARTS = 2


def mapped_bytes(pid: int) -> tuple[int, int]:
    """Return how many bytes of the files with rows a process maps, and how many of them are in its memory."""
    mapped = resident = 0
    is_rows = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_rows = "/rows." in line
        elif is_rows and words[0] in ("Size:", "Rss:"):
            size = int(words[1]) * 1024
            mapped, resident = (mapped + size, resident) if words[0] == "Size:" else (mapped, resident + size)
    return mapped, resident


def main() -> None:
    options = arguments(__doc__ or "")
    num_rows, repeats, seconds = (20_000, 2, 0.3) if options.quick else (1_000_000, 5, 1.0)
    loads: dict[str, list[LoadResult]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = LookupContenders(folder, num_rows, seconds, stack)
        servers = contenders.add_parts(NUM_PARTS)

        def rate(name: str) -> float:
            loads.setdefault(name, []).append(contenders.runs[name]())
            return loads[name][-1].per_second

        rates = alternate({name: partial(rate, name) for name in contenders.runs}, repeats=repeats)
        held = {name: mapped_bytes(server.pid) for name, server in servers.items()}
    whole, unit = {"whole": rates["whole"]}, "requests/s"
    cases = [
        Case("through the router", unit, rates["router"], whole, contest=False),
        Case("a part, asked for its own rows", unit, rates["part 1"], whole, contest=False),
    ]
    report(
        "serve.parts",
        cases,
        packages=("uvicorn", "uvloop", "httptools", "numpy", "numba"),
        out=options.out,
        quick=options.quick,
        peers=contenders.versions,
    )
    for name, found in loads.items():
        print(latency(name, found[1:]))
    for name, (mapped, resident) in held.items():
        print(f"{name}: maps {mapped / 2**20:.1f} MiB of the files with rows, {resident / 2**20:.1f} MiB in memory")


if __name__ == "__main__":
    main()
