"""Starts the ranks of a trainer on this machine with torchrun's own agent, which starts all again when one dies."""

import logging
import os
import sys
import uuid
from collections.abc import MutableMapping, Sequence
from typing import Any

from springtide.app.errors import UserError
from springtide.app.processes.signals import PARENT_VARIABLE
from springtide.app.training.ranks.errors import FINAL_CODES, USER_ERROR_CODE

logger = logging.getLogger(__name__)

MONITOR_SECONDS = 0.1
RENDEZVOUS_SECONDS = 900


def launch(arguments: Sequence[str], *, num_ranks: int, max_restarts: int) -> int:
    """Run `python -m springtide` with these arguments as so many ranks; return the exit code.

    A signal to this process reaches every rank; each then has 30 s to publish and end. The code is 0 if all did; 2 if a
    rank has ended with an error of the user. After that, as after any error that a new start would meet again, the
    ranks are not started again.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    os.environ[PARENT_VARIABLE] = str(os.getpid())  # the ranks end with the launcher
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    agent = _agent(arguments, num_ranks=num_ranks, max_restarts=max_restarts)
    try:
        agent.run()
    except SignalException as error:
        if not (failed := agent.failed()):
            return 0
        ends = ", ".join(f"rank {rank} {_how(code)}" for rank, code in failed.items())
        return _end(f"stopped by {error.sigval.name}, but not every rank could publish and end: {ends}")
    finally:
        agent.leave()
    if not (failed := agent.failed()):
        return 0
    if final := [code for code in failed.values() if code in FINAL_CODES]:
        return USER_ERROR_CODE if USER_ERROR_CODE in final else 1  # the rank has said why
    rank = agent.first_failed if agent.first_failed in failed else min(failed)
    limit = f"--max-restarts {max_restarts} allows no further start"
    return _end(f"rank {rank} {_how(failed[rank])}, and {limit}: its error is above")


def _how(code: int | None) -> str:
    return "still runs" if code is None else f"ended with exit code {code}"


def _end(text: str) -> int:
    print(f"springtide: {text}", file=sys.stderr)
    return 1


def _agent(arguments: Sequence[str], *, num_ranks: int, max_restarts: int) -> Any:
    """Return torchrun's agent for one machine, which does not try again what cannot succeed."""
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the ranks say what has happened, and we what follows

    class Agent(LocalElasticAgent):
        first_failed = 0

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            if result.failures:
                self.first_failed = min(result.failures, key=lambda rank: result.failures[rank].timestamp)
            if set(self.failed().values()) & set(FINAL_CODES):
                self._remaining_restarts = 0
            return result

        def _restart_workers(self, worker_group: WorkerGroup) -> None:
            logger.warning("all ranks are started again", extra={"restarts_left": self._remaining_restarts})
            super()._restart_workers(worker_group)

        def failed(self) -> dict[int, int | None]:
            """Return the exit codes of the newest start's ranks that have not ended with 0; None: it runs."""
            handlers = getattr(self._pcontext, "subprocess_handlers", {})
            codes = {rank: handler.proc.poll() for rank, handler in sorted(handlers.items())}
            return {rank: code for rank, code in codes.items() if code != 0}

        def leave(self) -> None:
            self._worker_group.spec.rdzv_handler.shutdown()

    rendezvous = RendezvousParameters(
        "c10d",
        "localhost:0",
        run_id=uuid.uuid4().hex,
        min_nodes=1,
        max_nodes=1,
        timeout=RENDEZVOUS_SECONDS,
    )
    spec = WorkerSpec(
        role="springtide",
        local_world_size=num_ranks,
        rdzv_handler=get_rendezvous_handler(rendezvous),
        entrypoint=sys.executable,
        args=("-P", "-m", "springtide", *arguments),
        max_restarts=max_restarts,
        monitor_interval=MONITOR_SECONDS,
    )
    return Agent(spec, DefaultLogsSpecs())


VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
LOCAL_RANK_VARIABLE = "LOCAL_RANK"


def take_gpu(environment: MutableMapping[str, str] = os.environ) -> None:
    """Hide all GPUs but this rank's from this process: it is GPU 0 then, in every thread and for every library.

    Call it before anything looks for a GPU. UserError if CUDA_VISIBLE_DEVICES names too few.
    """
    number, visible = int(environment.get(LOCAL_RANK_VARIABLE, "0")), environment.get(VISIBLE_VARIABLE)
    gpus = [] if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
    if visible is not None and number >= len(gpus):
        raise UserError(
            f"{VISIBLE_VARIABLE} = {visible!r} has no GPU for rank {number} of this machine: start at most one rank "
            "for each GPU"
        )
    environment[VISIBLE_VARIABLE] = str(number) if visible is None else gpus[number]


def require_gpus(num_ranks: int, num_gpus: int) -> None:
    """UserError if so many ranks on this machine would have to share GPUs."""
    if num_ranks > num_gpus:
        raise UserError(
            f"{num_ranks} ranks need a GPU each, and torch sees {num_gpus} here: start at most one rank for each GPU, "
            'or set [train] device = "cpu"'
        )
