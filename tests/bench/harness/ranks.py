"""Runs the ranks of a process group as processes of their own, on this host or on two (network namespaces)."""

import gc
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from springtide.app.processes.tuning import GOMP_SPIN_COUNT
from tests.bench.harness.hosts import ADDRESSES, DEVICE
from tests.bench.harness.processes import PEER_SCRIPTS
from tests.bench.harness.report import fail
from tests.support.processes import IMPORT_PATHS

ROOT = Path(__file__).parents[3]


class Ranks:
    """Processes that learn together, and the results of their runs.

    Each calls `learn(rank, num_ranks, **settings)`, a function of a benchmark, which returns numbers by name; a result
    of a run is their mean.
    """

    def __init__(
        self,
        learn: Callable[..., dict[str, float]],
        num_ranks: int,
        *,
        hosts: Sequence[str] = (),
        venv: Path | None = None,
        **settings: object,
    ) -> None:
        """hosts: of `two_hosts`, one for each rank; by default all run on this one.

        `venv`: of a peer with the same versions of torch and NumPy; our own packages are found behind its own.
        """
        self.num_ranks, self.hosts = num_ranks, hosts
        self.python = sys.executable if venv is None else str(venv / "bin" / "python")
        self.paths = [*IMPORT_PATHS]
        if venv is not None:
            self.paths += [PEER_SCRIPTS, *venv.glob("lib/*/site-packages"), Path(sysconfig.get_path("purelib"))]
        self.arguments = [learn.__module__, learn.__name__, json.dumps(settings)]
        self.results: list[dict[str, float]] = []
        self.port = 29_500 + os.getpid() % 1000

    def run(self) -> None:
        """Start new ranks and wait for their end."""
        self.port += 1
        address = f"{ADDRESSES[0] if self.hosts else '127.0.0.1'}:{self.port}"
        environment = os.environ | {"PYTHONPATH": ":".join(map(str, self.paths))}
        environment |= {"OMP_NUM_THREADS": "1" if self.num_ranks > 1 else "2"}
        environment |= {"GLOO_SOCKET_IFNAME": DEVICE if self.hosts else "lo"}
        # as a trainer has it: threads that wait for work give up their core soon
        environment["GOMP_SPINCOUNT"] = GOMP_SPIN_COUNT
        processes = []
        for rank in range(self.num_ranks):
            inside = ["ip", "netns", "exec", self.hosts[rank]] if self.hosts else []
            command = [*inside, self.python, "-m", __name__, str(rank), str(self.num_ranks), address, *self.arguments]
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        printed = [process.communicate(timeout=300)[0] for process in processes]
        if any(process.returncode for process in processes):
            fail(f"a rank of {self.num_ranks} failed")
        lines = [json.loads(text.splitlines()[-1]) for text in printed]
        self.results.append({name: sum(line[name] for line in lines) / len(lines) for name in lines[0]})

    def median_of(self, name: str) -> float:
        return median(self.all_of(name))

    def all_of(self, name: str) -> list[float]:
        return [result[name] for result in self.results]

    def describe(self) -> str:
        """Return what learned samples a second, loss, bytes sent and time in collectives were, in one line."""
        return (
            f"{self.median_of('rate'):,.0f} samples/s, loss {self.median_of('loss'):.4f}, "
            f"{self.median_of('bytes_a_sample'):,.0f} bytes a sample sent, "
            f"{self.median_of('waited'):.0%} of the time in collectives"
        )


def run_in_turn(contenders: Iterable[Ranks], repeats: int) -> None:
    """Run each of them, A/B/A/B."""
    runs = list(contenders)
    for _ in range(repeats):
        for ranks in runs:
            ranks.run()


class Waits:
    """Adds up the seconds of the calls of some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def timed_call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments, **options)
            self.seconds += time.perf_counter() - start
            return result

        return timed_call


def run_rank(rank: int, num_ranks: int, address: str, learn: Callable[[], dict[str, float]]) -> None:
    """In the process of a rank: make the group, learn, print the result, and end the group.

    Nothing may refer to the group once `learn` has returned: Gloo's threads must end before Python does.
    """
    import torch.distributed as dist

    if num_ranks > 1:
        dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=num_ranks)
    print(json.dumps(learn()))
    if num_ranks > 1:
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()


def main() -> None:
    rank, num_ranks, address, module, function, settings = sys.argv[1:]
    learn = getattr(import_module(module), function)
    run_rank(int(rank), int(num_ranks), address, partial(learn, int(rank), int(num_ranks), **json.loads(settings)))


if __name__ == "__main__":
    main()
