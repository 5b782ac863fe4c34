"""Servers that may hold less than the whole table in memory: one of all rows, and those of parts, in memory cgroups."""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.bench.serve.contenders import NUM_IDS, PATH, LookupContenders, Server, server_command
from tests.bench.table.memory_cgroup import MemoryCgroup, uncached_copy
from tests.support.ports import free_port

# of the files with rows: what each server's memory may hold of them, beside its own
SHARE = 0.6
NUM_REQUESTS, SECONDS = 16_384, 8.0


class SmallServer(NamedTuple):
    """A server and its limit."""

    server: Server
    cgroup: MemoryCgroup
    limit_bytes: int


def add_small_servers(
    contenders: LookupContenders, log: Path, parent: Path, count: int, stack: ExitStack
) -> dict[str, SmallServer]:
    """Start servers over copies of the log that are not in the page cache, each with the same room for rows.

    The server of all rows has a copy of its own: pages that a part had read would not count for it.
    """
    copies = [uncached_copy(log, contenders.folder / name) for name in ("log of one", "log of parts")]
    file_bytes = sum(path.stat().st_size for path in copies[0].rglob("rows*"))
    ports = [free_port() for _ in range(count)]
    settings: dict[str, dict[str, object]] = {"whole, small": {}}
    settings |= {f"part {n}, small": {"port": port, "range": f"{n}/{count}"} for n, port in enumerate(ports, 1)}
    found: dict[str, SmallServer] = {}
    for number, (name, given) in enumerate(settings.items()):
        folder = parent / f"springtide-bench-server-{number}"
        folder.mkdir()
        stack.callback(folder.rmdir)
        cgroup = MemoryCgroup(folder)
        stack.callback(cgroup.remove)
        inside = ["sh", "-c", f'echo $$ > "{cgroup.path}/cgroup.procs"; exec "$0" "$@"']
        server = contenders.start([*inside, *server_command(copies[number > 0], given)])
        server.ask("/v1/embeddings/user_id", b"", "application/octet-stream")  # it has loaded the model
        limit = cgroup.anonymous_bytes() + int(SHARE * file_bytes)
        cgroup.limit(limit)
        found[name] = SmallServer(server, cgroup, limit)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    router = contenders.start(server_command(copies[1], {"parts": urls}))
    # enough ids, for long enough, to touch nearly every page of the rows in each run
    contenders.seconds = SECONDS
    contenders.asked = list(np.random.default_rng(2).integers(0, contenders.num_rows, (NUM_REQUESTS, NUM_IDS)))
    contenders.add("whole, small", found["whole, small"].server, PATH, "raw")
    contenders.add("router, small", router, PATH, "raw")
    return found
