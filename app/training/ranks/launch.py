"""Starts the ranks of a trainer on this machine with torchrun's own launcher, which starts all again when one dies."""

import os
import sys
import uuid
from collections.abc import Sequence

from app.processes.parent_death import PARENT_VARIABLE

MONITOR_SECONDS = 0.1


def launch(arguments: Sequence[str], *, num_ranks: int, max_restarts: int) -> int:
    """Run `python -m app` with these arguments as so many ranks; return the exit code.

    A signal to this process reaches every rank; each then has 30 s to publish and end.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[PARENT_VARIABLE] = str(os.getpid())  # the ranks end with the launcher
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        monitor_interval=MONITOR_SECONDS,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "app", *arguments)
    except SignalException:
        return 0
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(
            f"springtide: rank {rank} ended with exit code {failure.exitcode}, and --max-restarts {max_restarts} "
            "allows no further start: its error is above",
            file=sys.stderr,
        )
        return 1
    return 0
