"""serve.clients: rows of 64 ids x dim 64 asked by the HTTP clients that people use, one connection each.

`--beside NAME=FOLDER` adds the server of another checkout, over the same log. The limit is a server that answers
constant bytes: what is left of a client's own rate beside ours.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from tests.bench.harness.processes import PEER_SCRIPTS
from tests.bench.harness.report import Case, alternate, argument_parser, output_of, report
from tests.bench.harness.thread_times import processor_seconds
from tests.bench.serve.contenders import (
    DIM,
    NUM_CHECKED,
    NUM_IDS,
    NUM_REQUESTS,
    PATH,
    RAW,
    Ids,
    Server,
    body_of,
    check,
    core,
    highest_priority,
    rows_of,
    server_command,
)
from tests.bench.workloads.row_log import write_log
from tests.support.processes import module_command, our_environment

PROGRAMS = PEER_SCRIPTS / "clients"
PYTHON_CLIENTS = ("httpx", "requests", "urllib3", "aiohttp")
RESPONSE_BYTES = NUM_IDS * (DIM * 4 + 1)
NUM_CURL_TRANSFERS = 1_000  # a second


class Load(NamedTuple):
    """What the clients ask."""

    folder: Path
    asked: list[Ids]
    seconds: float

    @property
    def bodies(self) -> Path:
        return self.folder / "bodies"

    def save(self) -> None:
        """Write the bodies, in one file and for curl in one each."""
        bodies = [body_of("raw", ids_K) for ids_K in self.asked]
        self.bodies.write_bytes(b"".join(bodies))
        for number, body in enumerate(bodies):
            (self.folder / f"body-{number}").write_bytes(body)


# the rate at a URL; the first responses are written to the path
Client = Callable[[str, Path], float]


def by_command(command: list[str], load: Load, url: str, kept: Path) -> float:
    """Run one of the programs in peers/clients."""
    arguments = [url, load.bodies, len(body_of("raw", load.asked[0])), load.seconds, kept]
    words = [*highest_priority(), *core(1), *command, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return float(subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def by_curl(load: Load, url: str, kept: Path) -> float:
    """Run one curl with many transfers, one after the other on one connection; the rate is by curl's own clock."""
    transfers = []
    for number in range(NUM_CHECKED + int(load.seconds * NUM_CURL_TRANSFERS)):
        out = f"{kept}-{number}" if number < NUM_CHECKED else "/dev/null"
        body = load.folder / f"body-{number % len(load.asked)}"
        transfers.append(
            f'url = "{url}"\nheader = "content-type: {RAW}"\ndata-binary = "@{body}"\noutput = "{out}"\n'
            'silent\nfail\nwrite-out = "%{time_total}\\n"\n'
        )
    (load.folder / "curl.conf").write_text("next\n".join(transfers))
    words = [*highest_priority(), *core(1), "curl", "--config", str(load.folder / "curl.conf")]
    lines = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    kept.write_bytes(b"".join(Path(f"{kept}-{number}").read_bytes() for number in range(NUM_CHECKED)))
    seconds = [float(line) for line in lines[NUM_CHECKED:]]
    return len(seconds) / sum(seconds)


def find_clients(venvs: Path, load: Load) -> tuple[dict[str, Client], dict[str, str]]:
    """Return the installed clients, and the version of each; "missing" of one that is not installed."""
    python = str(venvs / "clients/bin/python")
    if not Path(python).exists():
        python = sys.executable
    script = str(PROGRAMS / "python_client.py")
    clients: dict[str, Client] = {"socket": partial(by_command, [sys.executable, script, "socket"], load)}
    versions: dict[str, str | None] = {}
    for name in PYTHON_CLIENTS:
        versions[name] = output_of(python, "-c", f"import {name}; print({name}.__version__)")
        clients[name] = partial(by_command, [python, script, name], load)
    versions["fetch"] = output_of("node", "--version")
    clients["fetch"] = partial(by_command, ["node", str(PROGRAMS / "fetch_client.mjs")], load)
    program = str(load.folder / "net_http_client")
    versions["net/http"] = output_of("go", "version")
    if versions["net/http"] is not None:
        subprocess.run(["go", "build", "-o", program, str(PROGRAMS / "net_http_client.go")], check=True)
    clients["net/http"] = partial(by_command, [program], load)
    versions["curl"] = (output_of("curl", "--version") or "").partition(" (")[0] or None
    clients["curl"] = partial(by_curl, load)
    found = {name: client for name, client in clients.items() if versions.get(name, "") is not None}
    return found, {name: version or "missing" for name, version in versions.items()}


def start(stack: ExitStack, command: list[str], environment: dict[str, str]) -> Server:
    server = Server([*highest_priority(), *command], environment)
    stack.callback(server.close)
    return server


def start_servers(log: Path, beside: list[str], stack: ExitStack) -> dict[str, Server]:
    """Return ours, those of other checkouts, and the one that answers constant bytes."""
    servers = {"ours": start(stack, server_command(log, {}), our_environment())}
    for words in beside:
        name, _, folder = words.partition("=")
        paths = [Path(folder) / part for part in ("deploy/package", "deploy/client", ".")]
        environment = our_environment(PYTHONPATH=os.pathsep.join(map(str, paths)))
        servers[name] = start(stack, server_command(log, {}), environment)
    for server in servers.values():
        server.ask(PATH, b"", RAW)  # it has loaded the model
    command = module_command("tests.bench.serve.constant_server", str(RESPONSE_BYTES))
    return servers | {"constant": start(stack, command, our_environment())}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=FOLDER", help="another checkout")
    options = parser.parse_args()
    num_rows, repeats, seconds = (20_000, 2, 0.2) if options.quick else (200_000, 5, 1.0)
    random = np.random.default_rng(0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load = Load(folder, [random.integers(0, num_rows, NUM_IDS) for _ in range(NUM_REQUESTS)], seconds)
        load.save()
        clients, versions = find_clients(options.peers, load)
        servers = start_servers(write_log(folder, num_rows), options.beside, stack)

        micros: dict[tuple[str, str], list[float]] = {}  # of the server's processor for a request

        def rate(client: str, server: str) -> float:
            kept, before = folder / "responses", processor_seconds(servers[server].pid)
            per_second = clients[client](f"http://127.0.0.1:{servers[server].port}{PATH}", kept)
            used = processor_seconds(servers[server].pid) - before
            micros.setdefault((client, server), []).append(1e6 * used / (per_second * seconds))
            responses = kept.read_bytes()
            for number in range(NUM_CHECKED if server != "constant" else 0):
                rows = rows_of("raw", responses[number * RESPONSE_BYTES : (number + 1) * RESPONSE_BYTES])
                check(f"{client} from {server}", rows, load.asked[number])
            return per_second

        rates = {
            client: alternate({server: partial(rate, client, server) for server in servers}, repeats=repeats)
            for client in clients
        }
    cases = []
    for client, found in rates.items():
        limit = median(found.pop("constant"))
        cases.append(Case(client, "requests/s", found.pop("ours"), found, contest=False, limit=limit))
    report("serve.clients", cases, options, packages=("uvicorn", "uvloop", "httptools", "numpy"), peers=versions)
    for client in rates:
        spent = ", ".join(f"{server} {median(micros[client, server]):.0f}" for server in servers)
        print(f"{client}: the server's processor time for a request in µs: {spent}")


if __name__ == "__main__":
    main()
