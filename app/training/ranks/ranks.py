"""The ranks of one launch: which one this process is, and how it hears from the others. One rank is alone.

torchrun starts the processes and names their ranks in the environment; torch.distributed connects them.
"""

# N numbers or bytes, R ranks
import os
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _abort_process_group
from torch.distributed.rendezvous import rendezvous

from springtide.app.errors import UserError
from springtide.app.training.ranks.barrier import START_SECONDS, StoreBarrier, Watchdog, wait_for_all
from springtide.app.training.ranks.errors import FinalError, RankLostError, pickle_error, unpickle_error
from springtide.app.training.ranks.launch import LOCAL_RANK_VARIABLE
from springtide.app.version_log.trainer_status import boot_id
from springtide.app.version_log.write.ranks import LogRanks
from springtide.embeddings.rows import TableDelta
from springtide.embeddings.sharding.exchange import Exchange, LocalExchange
from springtide.embeddings.sharding.route import are_of_rank
from springtide.stream.positions import PartitionShare

T = TypeVar("T")

RESTARTS_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
AGENT_STORE_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": the store is torchrun's, and outlives a try
# GPUs exchange rows and gradients by NCCL; decisions travel by gloo, so that they do not wait for the device
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
# of the timeout: so long a rank may be silent, the rest of it is for the others' ends
PATIENCE, TIDY_END = 0.75, 0.15
SPILL_NAME = re.compile(r"rank-\d+")  # no rows outlive a launch there
REPORT_SECONDS = 5.0  # for another rank to report the error that both have
# gloo raises plain RuntimeErrors
CONNECTION_WORDS = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out")


def num_ranks_in_environment() -> int:
    """Return of how many ranks torchrun says that this process is one; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def number_of_try() -> int:
    """Return what keeps this try's keys in the store apart from those of an earlier one of the same launch.

    A store that rank 0 makes is new for each try, and the torchruns of several hosts may have counted differently.
    """
    return int(os.environ.get(RESTARTS_VARIABLE, "0")) if os.environ.get(AGENT_STORE_VARIABLE) == "True" else 0


def launch_name() -> str:
    """Return a name of the launch that has started this process, unlike any other launch's; "" without torchrun.

    A run's name is "none" unless torchrun was given one, and in containers its process id is often the same.
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    return "" if run is None else f"{run}/{boot_id()}/{os.getppid()}/{start_time(os.getppid())}"


def start_time(pid: int) -> str:
    """Return when a process started: in the kernel's ticks since the machine did, or by ps where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return "-".join(words)


class Ranks:
    """This process among the ranks. Every rank makes the same calls in the same order, in one thread.

    RankLostError if another rank has ended, or does not answer in time. Of one rank every call returns at once.
    """

    def __init__(self, exchange: Exchange | None = None, store: Any = None, *, timeout_seconds: float = 30.0) -> None:
        """exchange: over gloo; `store`: a torch.distributed.Store of this launch alone. Neither: the only rank."""
        self.exchange, self._store, self.timeout_seconds = exchange or LocalExchange(), store, timeout_seconds
        self.rank, self.num_ranks = self.exchange.rank, self.exchange.num_ranks
        self.is_first = self.rank == 0  # the rank that decides, and writes what there is once
        self.is_alone = self.num_ranks == 1
        self.share = PartitionShare(self.rank, self.num_ranks)  # the partitions of the topic that this rank reads
        self._watchdog: Watchdog | None = None  # of a process that is one rank
        self._barrier: StoreBarrier | None = None
        self._others_failed_alike = False  # another rank ended with the same error before
        self._left: StoreBarrier | None = None  # after an error
        if not self.is_alone:
            self._barrier = StoreBarrier(store, self.rank, self.num_ranks, PATIENCE * timeout_seconds)

    @staticmethod
    def of_environment(timeout_seconds: float, device: str = "cpu") -> "Ranks":
        """Connect with the other ranks if torchrun has started this process; else this is the only rank.

        `device`: "cuda" connects GPUs by NCCL too; `take_gpu` has chosen this rank's. RankLostError if not all ranks
        come in time, UserError if there is no GPU for this one.
        """
        num_ranks = num_ranks_in_environment()
        if num_ranks == 1:
            return Ranks()
        timeout, gpu = timedelta(seconds=PATIENCE * timeout_seconds), None
        if device == "cuda":
            if not torch.cuda.is_available():
                raise UserError(
                    f"there is no GPU for rank {os.environ.get(LOCAL_RANK_VARIABLE, '0')} of this machine, or torch "
                    f'{torch.__version__} sees none: start at most one rank for each GPU, or set [train] device = "cpu"'
                )
            gpu = torch.device("cuda", 0)
        with as_rank_lost(timeout_seconds):
            # it waits for all ranks: on a busy machine one may import much longer than another
            store, rank, _ = next(iter(rendezvous("env://", timeout=timedelta(seconds=START_SECONDS))))
            store.set_timeout(timeout)
            store = PrefixStore(f"springtide/{number_of_try()}", store)
            wait_for_all(store, num_ranks)
            group_store = PrefixStore("group", store)
            dist.init_process_group(
                BACKENDS[device], store=group_store, rank=rank, world_size=num_ranks, timeout=timeout, device_id=gpu
            )
            assert dist.group.WORLD is not None
            ranks = Ranks(Exchange(dist.group.WORLD, device), store, timeout_seconds=timeout_seconds)
        assert ranks._barrier is not None
        ranks._watchdog = Watchdog(ranks._barrier.answered_at, PATIENCE * timeout_seconds)
        ranks._watchdog.start()
        return ranks

    def of_log(self) -> LogRanks | None:
        """Return this process's place among the writers of the log; None without other ranks."""
        if self.is_alone:
            return None
        store = PrefixStore("log", self._store.clone())
        return LogRanks(store, self.rank, self.num_ranks, self.timeout_seconds, silence=self._silence)

    def all_gather_numbers(self, own_N: Sequence[int]) -> list[list[int]]:
        """Return the numbers of each rank, rank 0's first. All give equally many."""
        if self.is_alone:
            return [list(own_N)]
        with self.as_rank_lost():
            return self.exchange.all_gather_numbers(own_N)

    def any_rank(self, here: bool) -> bool:
        """Return True if it is true on a rank."""
        return any(numbers[0] for numbers in self.all_gather_numbers([int(here)]))

    def all_gather(self, own: T) -> list[T]:
        """Return what each rank gives, rank 0's first: any object that can be pickled."""
        if self.is_alone:
            return [own]
        own_N1 = torch.frombuffer(bytearray(pickle.dumps(own, protocol=5)), dtype=torch.uint8)[:, None]
        with self.as_rank_lost():
            lengths = [numbers[0] for numbers in self.exchange.all_gather_numbers([len(own_N1)])]
            parts = self.exchange.all_gather("objects", own_N1, lengths).split(lengths)  # type: ignore[no-untyped-call]
        return [pickle.loads(part.numpy().tobytes()) for part in parts]

    def broadcast(self, own: T) -> T:
        """Return what rank 0 gives."""
        return self.all_gather(own if self.is_first else None)[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait for all ranks, however long they need, as long as they live."""
        if self._barrier is not None:
            with self.as_rank_lost():
                self._barrier.wait()

    def on_rank0(self, action: Callable[[], T]) -> T:
        """Let rank 0 do something, however long it takes; all ranks return its result, or raise its error."""
        if self.is_alone:
            return action()
        result: T | None = None
        failure: Exception | None = None
        if self.is_first:
            try:
                result = action()
            except Exception as error:
                failure = error
        self.barrier()
        result, pickled = self.broadcast((result, None if failure is None else pickle_error(failure)))
        if failure is not None:
            raise failure
        if pickled is not None:
            raise unpickle_error(pickled)
        return result  # type: ignore[return-value]

    def first_text(self, own: str) -> tuple[int, str] | None:
        """Return the lowest rank that gives a text that is not empty, and the text; None if no rank does."""
        return next(((rank, text) for rank, text in enumerate(self.all_gather(own)) if text), None)

    def raise_together(self, error: Exception | None, reason: str) -> None:
        """Raise this error if the process is alone; of many ranks, on all a FinalError with the lowest one's reason."""
        if self.is_alone and error is not None:
            raise error
        if (found := self.first_text(reason)) is not None:
            rank, text = found
            raise FinalError(f"rank {rank}: {text}")

    @property
    def patience_seconds(self) -> float:
        """So long a rank may keep the others waiting in a collective before they take it for dead; alone, for ever."""
        return float("inf") if self.is_alone else self.timeout_seconds / 5

    def is_own(self, features_N: npt.NDArray[np.uint16], ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which keys are in this rank's range."""
        return are_of_rank(features_N, ids_N, self.rank, self.num_ranks)

    def own_part(self, delta: TableDelta) -> TableDelta:
        """Return what a version changes in this rank's range."""
        if self.is_alone:
            return delta
        return TableDelta(*(part.where(self.is_own(part.feature, part.id)) for part in (delta.rows, delta.forgotten)))

    def spill_folder(self, folder: Path) -> Path:
        """Return this rank's folder within that of the configuration; it has a folder of each epoch."""
        return folder if self.is_alone else folder / f"rank-{self.rank}"

    def remove_former_spills(self, folder: Path, epoch: int) -> None:
        """Remove what ranks of earlier launches have left on this machine, once all ranks of this epoch have a spill.

        The disk may be shared with ranks of other machines: their folders have this epoch.
        """
        for path in folder.iterdir() if folder.is_dir() else ():
            is_former_rank = SPILL_NAME.fullmatch(path.name) and not (path / str(epoch)).exists()
            is_of_one = not self.is_alone and path.name.isdigit() and int(path.name) < epoch
            if is_former_rank or is_of_one:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def as_rank_lost(self) -> Iterator[None]:
        """Turn what torch says when another rank has ended into a RankLostError; alone, errors stay as they are."""
        if self.is_alone:
            yield
            return
        with as_rank_lost(self.timeout_seconds, lambda: None if self._barrier is None else self._barrier.lost()):
            yield

    def leave_together(self) -> None:
        """Leave together: the store may be in the process of rank 0, and is needed until all have come."""
        self.barrier()
        self.any_rank(False)
        self.leave()

    def leave(self, error: BaseException | None = None) -> bool:
        """End the connection; with an error the other ranks end too, and say why. May be called again.

        Returns True if there are others, who do not say any more what is durable.
        """
        is_lost = isinstance(error, RankLostError)
        if self._watchdog is not None:
            if error is None:
                self._watchdog.stop()
            elif is_lost:
                self._watchdog.end_within(TIDY_END * self.timeout_seconds, " ".join(str(error).split()))
        if self._barrier is not None:
            self._others_failed_alike = self._barrier.leave(None if is_lost else error)
            self._left, self._barrier = self._barrier, None
            if dist.is_initialized() and type(self.exchange) is Exchange:
                if error is not None and "nccl" in dist.get_backend_config():
                    _abort_process_group()  # to destroy it would wait for what a lost rank never sends
                else:
                    dist.destroy_process_group()
        return not self.is_alone

    def is_reported(self, error: BaseException) -> bool:
        """Return True if another rank reports to the user the error with which this one has left.

        False: this one has to report it, and then to call `mark_reported`.
        """
        if isinstance(error, RankLostError):
            return error.ends_launch
        return self._others_failed_alike and self._left is not None and self._left.wait_until_reported(REPORT_SECONDS)

    def mark_reported(self) -> None:
        """This rank has reported the error with which it has left."""
        if self._left is not None:
            with suppress(RuntimeError, OSError):
                self._left.mark_reported()

    def _silence(self) -> str:
        barrier = self._barrier
        return "" if barrier is None else barrier.silence()


@contextmanager
def as_rank_lost(timeout_seconds: float, reason: Callable[[], RankLostError | None] = lambda: None) -> Iterator[None]:
    """Turn what torch says when another rank has ended into a RankLostError; `reason` knows more, if it can."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not isinstance(error, dist.DistError) and not any(word in text for word in CONNECTION_WORDS):
            raise
        raise reason() or RankLostError(
            f"another rank has ended, or did not answer within [cluster] timeout_seconds = {timeout_seconds:g}: "
            "this one ends too; torchrun starts all ranks again while --max-restarts allows it"
        ) from error
