"""serve.parts: 64 ids x dim 64 of a table in two parts, through a router, beside one server that holds everything."""

import os
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.bench.harness.report import Case, alternate, argument_parser, report
from tests.bench.serve.contenders import LookupContenders
from tests.bench.serve.http_load import LoadResult
from tests.bench.serve.lookup import latency
from tests.bench.serve.small_servers import SmallServer, add_small_servers
from tests.bench.workloads.row_log import write_log

NUM_PARTS = 2


def mapped_bytes(pid: int) -> tuple[int, int]:
    """Return how many bytes of the files with rows a process maps, and how many of them are in its memory."""
    mapped = resident = 0
    is_rows = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_rows = "/rows" in line
        elif is_rows and words[0] in ("Size:", "Rss:"):
            size = int(words[1]) * 1024
            mapped, resident = (mapped + size, resident) if words[0] == "Size:" else (mapped, resident + size)
    return mapped, resident


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--cgroup", type=Path, help="a memory cgroup: also run with servers too small for all rows")
    options = parser.parse_args()
    num_rows, repeats, seconds = (20_000, 2, 0.3) if options.quick else (1_000_000, 5, 1.0)
    if options.cgroup is not None and not options.quick:
        num_rows = 4_000_000
    small: dict[str, SmallServer] = {}
    loads: dict[str, list[LoadResult]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = LookupContenders(folder, num_rows, seconds, stack)
        log = write_log(folder, num_rows)
        servers = contenders.add_parts(log, NUM_PARTS)
        if options.cgroup is not None:
            small = add_small_servers(contenders, log, options.cgroup, NUM_PARTS, stack)

        cpu: dict[str, dict[str, float]] = {}

        def rate(name: str) -> float:
            before = {server: cpu_seconds(servers[server].pid) for server in servers}
            loads.setdefault(name, []).append(contenders.runs[name]())
            per_second = loads[name][-1].per_second
            for server, spent in before.items():
                used = cpu_seconds(servers[server].pid) - spent
                if used > 0.02 * seconds:  # the others only follow the log
                    cpu.setdefault(name, {})[server] = 1e6 * used / (per_second * seconds)
            return per_second

        rates = alternate({name: partial(rate, name) for name in contenders.runs}, repeats=repeats)
        servers |= {name: each.server for name, each in small.items()}
        held = {name: mapped_bytes(server.pid) for name, server in servers.items()}
        for each in small.values():
            each.cgroup.lift()
    whole, unit = {"whole": rates["whole"]}, "requests/s"
    cases = [
        Case("through the router", unit, rates["router"], whole, contest=False),
        Case("a part, asked for its own rows", unit, rates["part 1"], whole, contest=False),
    ]
    if small:
        cases.append(
            Case(
                "servers with room for 60 %",
                unit,
                rates["router, small"],
                {"one server": rates["whole, small"]},
                contest=False,
            )
        )
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
        spent = ", ".join(f"{server} {micros:.0f}" for server, micros in cpu[name].items())
        print(f"  CPU of a request of the last run in µs: {spent}")
    for name, each in small.items():
        print(f"{name}: its cgroup may hold {each.limit_bytes / 2**20:.0f} MiB")
    for name, (mapped, resident) in held.items():
        print(f"{name}: maps {mapped / 2**20:.1f} MiB of the files with rows, {resident / 2**20:.1f} MiB in memory")


if __name__ == "__main__":
    main()
