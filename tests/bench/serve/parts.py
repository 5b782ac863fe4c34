"""serve.parts: 64 ids x dim 64 of a table in two parts, through a router, beside one server that holds everything."""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.bench.harness.report import Case, alternate, argument_parser, report
from tests.bench.harness.thread_times import processor_seconds
from tests.bench.serve.contenders import LookupContenders
from tests.bench.serve.http_load import Loads
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


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--cgroup", type=Path, help="a memory cgroup: also run with servers too small for all rows")
    options = parser.parse_args()
    num_rows, repeats, seconds = (20_000, 2, 0.3) if options.quick else (1_000_000, 5, 1.0)
    if options.cgroup is not None and not options.quick:
        num_rows = 4_000_000
    small: dict[str, SmallServer] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = LookupContenders(folder, num_rows, seconds, stack)
        log = write_log(folder, num_rows)
        servers = contenders.add_parts(log, NUM_PARTS)
        if options.cgroup is not None:
            small = add_small_servers(contenders, log, options.cgroup, NUM_PARTS, stack)

        cpu: dict[str, dict[str, float]] = {}
        loads = Loads(contenders.runs)

        def rate(name: str) -> float:
            before = {server: processor_seconds(servers[server].pid) for server in servers}
            per_second = loads.rate(name)
            for server, spent in before.items():
                used = processor_seconds(servers[server].pid) - spent
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
        one = {"one server": rates["whole, small"]}
        cases.append(Case("servers with room for 60 %", unit, rates["router, small"], one, contest=False))
    packages = ("uvicorn", "uvloop", "httptools", "numpy", "numba")
    report("serve.parts", cases, options, packages=packages, peers=contenders.versions)
    for name in rates:
        print(loads.describe(name))
        spent = ", ".join(f"{server} {micros:.0f}" for server, micros in cpu[name].items())
        print(f"  CPU of a request of the last run in µs: {spent}")
    for name, each in small.items():
        print(f"{name}: its cgroup may hold {each.limit_bytes / 2**20:.0f} MiB")
    for name, (mapped, resident) in held.items():
        print(f"{name}: maps {mapped / 2**20:.1f} MiB of the files with rows, {resident / 2**20:.1f} MiB in memory")
