"""Ranks hear from each other; long work of one is waited for, and a rank that has failed or frozen is not."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from springtide.app.errors import UserError
from springtide.app.training.ranks.barrier import StoreBarrier
from springtide.app.training.ranks.errors import FINAL_CODE, FinalError, RankLostError, exit_code
from springtide.app.training.ranks.ranks import Ranks, launch_name, number_of_try, start_time
from springtide_client.errors import EncodeError, LogError
from tests.support.thread_ranks import on_ranks


def with_store(work):
    store = HashStore()
    return on_ranks(2, lambda exchange: work(Ranks(exchange, store, timeout_seconds=30.0)))


def test_one_rank_has_nobody_to_talk_to():
    alone = Ranks()
    assert (alone.is_first, alone.is_alone, alone.share) == (True, True, (0, 1))
    assert alone.all_gather_numbers([3]) == [[3]]
    assert alone.all_gather("a") == ["a"]
    assert alone.any_rank(True)
    assert alone.on_rank0(lambda: 5) == 5
    assert alone.of_log() is None
    with pytest.raises(RuntimeError, match="it timed out"), alone.as_rank_lost():
        raise RuntimeError("it timed out")
    alone.leave_together()


def test_tries_are_told_apart_where_the_store_outlives_them_and_only_there(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert number_of_try() == 3
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")  # the torchruns of two hosts may differ in the count
    assert number_of_try() == 0


def test_each_rank_hears_what_the_others_give():
    def work(ranks: Ranks):
        rank = ranks.rank
        found = ranks.all_gather({rank: "x" * rank}), ranks.broadcast(f"rank {rank}"), ranks.any_rank(rank == 1)
        ranks.leave_together()
        return found

    first, second = with_store(work)
    assert first == second == ([{0: ""}, {1: "x"}], "rank 0", True)


def test_what_rank_0_does_has_its_result_or_its_error_on_all_ranks():
    def work(ranks: Ranks):
        def fail() -> None:
            raise LogError("no such version")

        def fail_to_encode() -> None:
            raise EncodeError("bad_id", "not a number")

        done = ranks.on_rank0(lambda: ranks.rank + 7)
        with pytest.raises(EncodeError, match="not a number"):
            ranks.on_rank0(fail_to_encode)
        with pytest.raises(LogError, match="no such version"):
            ranks.on_rank0(fail)
        ranks.leave_together()
        return done

    assert with_store(work) == [7, 7]


def test_a_rank_that_has_failed_is_not_waited_for():
    store = HashStore()
    first, second = StoreBarrier(store, 0, 2, 30.0), StoreBarrier(store, 1, 2, 30.0)
    second.leave(ValueError("the disk is gone"))
    with pytest.raises(RankLostError, match="rank 1 has ended: the disk is gone"):
        first.wait()
    first.leave(None)


def test_all_ranks_get_the_first_text():
    def work(ranks: Ranks):
        found = ranks.first_text(""), ranks.first_text(f"rank {ranks.rank}" if ranks.rank else "")
        ranks.leave_together()
        return found

    assert with_store(work) == [(None, (1, "rank 1"))] * 2


def test_an_error_that_all_ranks_have_is_reported_by_one():
    def work(ranks: Ranks):
        error = UserError("no such device")
        ranks.any_rank(False)
        ranks.leave(error)
        if ranks.is_reported(error):
            return exit_code(error), False
        ranks.mark_reported()
        return exit_code(error), True

    assert sorted(with_store(work)) == [(2, False), (2, True)]


def test_who_hears_of_a_final_error_ends_as_final():
    store = HashStore()
    first, second = StoreBarrier(store, 0, 2, 30.0), StoreBarrier(store, 1, 2, 30.0)
    second.leave(FinalError("the model is held back"))
    lost = first.lost()
    assert str(lost) == "rank 1 has ended: the model is held back"
    assert exit_code(lost) == FINAL_CODE
    assert exit_code(LogError("full")) == 1
    first.leave(None)


def test_a_silent_rank_is_not_waited_for_longer_than_the_timeout():
    store = HashStore()
    first, second = StoreBarrier(store, 0, 2, 0.2), StoreBarrier(store, 1, 2, 0.2)
    second.leave(None)  # its heartbeat ends, and it says nothing
    with pytest.raises(RankLostError, match=r"rank 1 is silent for 0.2 s"):
        first.wait()
    first.leave(None)


def test_launches_have_names_of_their_own_also_if_run_and_process_id_repeat(monkeypatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launch_name() == ""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    name = launch_name()
    assert name == launch_name()
    assert name.startswith("none/")
    assert name.endswith(f"/{os.getppid()}/{start_time(os.getppid())}")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert start_time(child.pid) >= start_time(os.getpid())
        child.communicate(b"\n")


def test_spills_of_former_ranks_are_removed_also_where_rank_0_is_not(tmp_path):
    for name in ("rank-0/7", "rank-2/8", "rank-3/8/main", "rank-9/6", "7", "8", "other"):
        (tmp_path / name).mkdir(parents=True)
    ranks: Any = SimpleNamespace(is_alone=False, rank=2)
    assert Ranks.spill_folder(ranks, tmp_path) == tmp_path / "rank-2"
    Ranks.remove_former_spills(ranks, tmp_path, 8)
    # rank 3 of this launch may be on another machine with the same disk
    assert sorted(path.name for path in tmp_path.iterdir()) == ["8", "other", "rank-2", "rank-3"]


def test_one_process_removes_those_of_ranks(tmp_path):
    for name in ("rank-0/7", "8"):
        (tmp_path / name).mkdir(parents=True)
    assert Ranks().spill_folder(tmp_path) == tmp_path
    Ranks().remove_former_spills(tmp_path, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["8"]
