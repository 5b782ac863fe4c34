"""Runs evaluations one after another or in processes beside each other; what they score does not depend on which."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from springtide.app.errors import UserError
from springtide.app.tools.evaluate.passes import evaluate_files
from springtide.app.tools.evaluate.report import EvaluationResult, ProgressReport
from springtide.app.tools.input_file import InputFile
from springtide_client.system.parent_death import die_with_parent

POLL_SECONDS = 0.2
Change = Mapping[str, Any]


@dataclass(frozen=True)
class TrialRequest:
    """Settings to evaluate on the first rows of files."""

    files: tuple[Path, ...]
    config: Path
    changes: tuple[Change, ...]
    rows: int
    folder: str  # for temporary files
    keep_samples: bool


@dataclass(frozen=True)
class Trial:
    """What came of a request."""

    loss: float  # mean logloss of the labels; infinite if it failed
    auc: float | None
    seconds: float  # with the start
    error: str
    result: EvaluationResult | None  # if the samples are kept


def run_trial(request: TrialRequest) -> Trial:
    """Evaluate; settings that cannot be used are a trial with an error."""
    began = time.monotonic()
    files = [InputFile(path) for path in request.files]
    quiet = ProgressReport(stream=StringIO(), first_line=request.rows + 1)
    # one thread each, so that runs beside each other do not wait for each other's threads
    changes = ({"train": {"threads": 1}}, *request.changes)
    try:
        result = evaluate_files(
            files, request.config, changes, limit=request.rows, progress=quiet, folder=request.folder
        )
    except (UserError, ValueError, MemoryError) as error:
        return Trial(float("inf"), None, time.monotonic() - began, str(error) or type(error).__name__, None)
    logloss = [score.logloss for score in result.whole.values()]
    known = [value for value in logloss if value is not None and value == value]
    loss = sum(known) / len(known) if len(known) == len(logloss) else float("inf")
    return Trial(loss, result.first.auc, time.monotonic() - began, "", result if request.keep_samples else None)


class TrialRunner:
    """A context manager that runs trials, `jobs` at a time."""

    def __init__(self, jobs: int, stopping: threading.Event | None = None) -> None:
        """`stopping`: KeyboardInterrupt as soon as it is set."""
        self.jobs, self._stopping = jobs, stopping or threading.Event()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "TrialRunner":
        if self.jobs > 1:
            context = multiprocessing.get_context("spawn")  # a fork would inherit locks that threads hold
            self._pool = ProcessPoolExecutor(
                self.jobs, mp_context=context, initializer=_prepare, initargs=(os.getpid(),)
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            workers = multiprocessing.active_children()
            self._pool.shutdown(wait=not self._stopping.is_set(), cancel_futures=True)
            for worker in workers if self._stopping.is_set() else ():
                worker.terminate()

    def run(self, requests: Sequence[TrialRequest], on_trial: Callable[[int], None] = lambda num: None) -> list[Trial]:
        """Return the trials in the order of their requests; `on_trial` gets the number done so far."""
        done: list[Trial] = []
        for trial in self._in_turn(requests) if self._pool is None else self._beside(self._pool, requests, on_trial):
            done.append(trial)
            if self._pool is None:
                on_trial(len(done))
        return done

    def _in_turn(self, requests: Sequence[TrialRequest]) -> Iterator[Trial]:
        for request in requests:
            self._check()
            yield run_trial(request)

    def _beside(
        self, pool: ProcessPoolExecutor, requests: Sequence[TrialRequest], on_trial: Callable[[int], None]
    ) -> Iterator[Trial]:
        futures = [pool.submit(run_trial, request) for request in requests]
        waiting: set[Future[Trial]] = set(futures)
        while waiting:
            self._check()
            finished, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            if finished:
                on_trial(len(futures) - len(waiting))
        yield from (future.result() for future in futures)

    def _check(self) -> None:
        if self._stopping.is_set():
            raise KeyboardInterrupt


def _prepare(parent: int) -> None:
    """In a worker: leave Ctrl-C to the parent, and die with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
