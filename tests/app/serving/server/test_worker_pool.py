"""Workers that do nothing but live and die, in real processes."""

import os
import signal

import pytest

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server.worker_pool import WorkerPool
from tests.support.descriptors import is_pipe_open
from tests.support.waiting import DEADLINE_SECONDS, wait_until


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def kept(tmp_path):
    """Two workers that live until a signal; `how["successor"]` decides whether later ones do too."""
    clock, how = Clock(), {"successor": "lives"}

    def main(config, slot, report_listening, is_successor):
        if is_successor and how["successor"] == "dies":
            return
        report_listening()
        signal.pause()

    folder = tmp_path / "folder"
    folder.mkdir()
    workers = WorkerPool(main, ServeConfig(workers=2, cache_path=str(tmp_path / "cache")), folder, clock=clock)
    yield workers, clock, how, folder
    clock.now = 0.0
    workers.stop(DEADLINE_SECONDS)


def supervise_until(workers, check):
    wait_until(lambda: check() or workers.supervise())


def pids(workers):
    return [worker.process.pid for worker in workers._workers if worker.is_listening]


def pass_the_pause(workers, clock):
    clock.now += workers._backoff.remaining_seconds + 1e-6


def test_a_dead_worker_is_replaced_after_growing_pauses(kept):
    workers, clock, how, _ = kept
    supervise_until(workers, lambda: workers.all_listening)
    how["successor"] = "dies"
    first, second = pids(workers)
    os.kill(first, signal.SIGKILL)
    supervise_until(workers, lambda: len(workers._workers) == 1)
    pauses = []
    for number in (3, 4, 5):
        pauses.append(workers._backoff.remaining_seconds)
        pass_the_pause(workers, clock)
        supervise_until(workers, lambda number=number: workers._num_started == number)
        supervise_until(workers, lambda: len(workers._workers) == 1)
    assert pauses == pytest.approx([0.1, 0.2, 0.4])
    how["successor"] = "lives"
    pass_the_pause(workers, clock)
    supervise_until(workers, lambda: workers.all_listening)
    assert second in pids(workers)


def test_no_worker_leaves_before_its_successor_listens(kept):
    workers, clock, how, folder = kept
    supervise_until(workers, lambda: workers.all_listening)
    first = pids(workers)
    how["successor"] = "dies"
    workers.start_rolling_restart()
    supervise_until(workers, lambda: workers._num_started == 3)
    supervise_until(workers, lambda: len(workers._workers) == 2)
    assert pids(workers) == first
    how["successor"] = "lives"
    pass_the_pause(workers, clock)
    supervise_until(workers, lambda: workers.all_listening and not set(pids(workers)) & set(first))
    assert (folder / "exited_workers.json").read_text().count('"replaced"') == 1


def test_a_worker_that_does_not_leave_in_time_is_killed(tmp_path):
    clock = Clock()

    def main(config, slot, report_listening, is_successor):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        report_listening()
        signal.pause()

    folder = tmp_path / "folder"
    folder.mkdir()
    workers = WorkerPool(main, ServeConfig(workers=2, cache_path=str(tmp_path / "cache")), folder, clock=clock)
    supervise_until(workers, lambda: workers.all_listening)
    first = pids(workers)
    workers.start_rolling_restart()
    supervise_until(workers, lambda: any(worker.leave_by for worker in workers._workers))
    clock.now += 100
    supervise_until(workers, lambda: first[0] not in pids(workers))
    clock.now = 0.0
    workers.stop(DEADLINE_SECONDS)


def test_the_server_survives_a_failed_fork(kept, monkeypatch):
    workers, clock, _, _ = kept
    supervise_until(workers, lambda: workers.all_listening)
    first, second = pids(workers)
    os.kill(first, signal.SIGKILL)
    supervise_until(workers, lambda: len(workers._workers) == 1)
    inodes = []
    make_pipe = os.pipe

    def pipe():
        ends = make_pipe()
        inodes.append(os.fstat(ends[0]).st_ino)
        return ends

    with monkeypatch.context() as patch:
        patch.setattr("os.pipe", pipe)
        patch.setattr("os.fork", refuse)
        pass_the_pause(workers, clock)
        workers.supervise()
        assert not workers._backoff.is_over
    assert inodes
    assert not any(is_pipe_open(inode) for inode in inodes)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # SIGTERM is not blocked
    pass_the_pause(workers, clock)
    supervise_until(workers, lambda: workers.all_listening)
    assert second in pids(workers)


def refuse():
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_the_server_survives_a_full_disk(kept):
    workers, clock, _, folder = kept
    supervise_until(workers, lambda: workers.all_listening)
    first, second = pids(workers)
    folder.rename(folder.with_name("elsewhere"))  # nothing can be written there
    os.kill(first, signal.SIGKILL)
    supervise_until(workers, lambda: len(workers._workers) == 1)
    pass_the_pause(workers, clock)
    supervise_until(workers, lambda: workers.all_listening)
    assert second in pids(workers)
    folder.with_name("elsewhere").rename(folder)
    workers.supervise()
    assert (folder / "exited_workers.json").read_text().count('"died"') == 1
