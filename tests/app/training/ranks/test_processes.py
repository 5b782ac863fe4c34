"""Ranks as processes, as torchrun starts them: one is killed, the other ends, and the next start loses nothing.

A server process imports what they need once, and forks them.
"""

import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from springtide.app.cli import main
from springtide.app.training.ranks.launch import launch as start_ranks
from springtide.app.training.trainer import Trainer
from tests.app.training.ranks.thread_trainers import on_trainers
from tests.app.training.state.test_training_state import assert_same, snapshot
from tests.app.training.trainer_env import expected_counts, records
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_SECONDS, wait_until

SETTINGS = """
[cluster]
timeout_seconds = 20
"""
ENVIRONMENT: dict[str, str] = {}  # more of it for each rank
CONTEXT = multiprocessing.get_context("forkserver")
PRELOAD = [
    "springtide.app.training.trainer",
    "springtide.app.commands.train",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
]


def run_rank(
    rank: int, num_ranks: int, port: int, config: Path, folder: Path, options: list[str], more: dict[str, str]
) -> None:
    """What torchrun does in a rank: name it in the environment, and run the command."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **more,
    }
    with (folder / f"rank-{rank}.out").open("w") as out, (folder / f"rank-{rank}.err").open("w") as err:
        sys.stdout, sys.stderr = out, err
        code = main(["train", "--no-compact", "--config", str(config), *options])
        out.flush()
        err.flush()
    os._exit(code)


class Processes:
    """One launch."""

    def __init__(self, env, num_ranks: int, options: list[str]) -> None:
        port, self.folder = free_port(), env.path.parent
        self.all = [
            CONTEXT.Process(target=run_rank, args=(rank, num_ranks, port, env.path, self.folder, options, ENVIRONMENT))
            for rank in range(num_ranks)
        ]
        for process in self.all:
            process.start()

    def exit_codes(self) -> list[int | None]:
        for process in self.all:
            process.join(6 * DEADLINE_SECONDS)
        return [process.exitcode for process in self.all]

    def text(self, rank: int, kind: str) -> str:
        return (self.folder / f"rank-{rank}.{kind}").read_text()


@pytest.fixture
def launch(env) -> Iterator:
    CONTEXT.set_forkserver_preload(PRELOAD)
    launches: list[Processes] = []

    def start(num_ranks: int, *options: str) -> Processes:
        launches.append(Processes(env, num_ranks, list(options)))
        return launches[-1]

    yield start
    for processes in launches:
        for process in processes.all:
            if process.is_alive():
                process.kill()


def test_a_killed_rank_ends_the_others_and_nothing_is_lost_or_doubled(env, launch):
    env.configure(SETTINGS)
    env.create(partitions=3)
    for partition in range(3):
        env.produce(100, partition=partition)
    first = launch(2)
    wait_until(lambda: env.status().samples_trained == 300, "300 samples", seconds=6 * DEADLINE_SECONDS)
    os.kill(first.all[0].pid, signal.SIGKILL)  # with the store
    assert first.exit_codes() == [-signal.SIGKILL, 1], first.text(1, "err")
    *_, last = lines = first.text(1, "err").splitlines()
    assert last.startswith("springtide: ")
    assert not any("c10d" in line or line.startswith("frame #") for line in lines), lines  # of C++

    env.produce(100, partition=1)
    assert Trainer(env.config, until_end=True).run().samples_trained == 400
    assert env.counts() == expected_counts(400)


def test_an_error_of_the_user_is_told_once_and_ends_all_ranks_as_one(env, launch, monkeypatch):
    # as torchrun's, the store is not in a rank
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(f"{__name__}.free_port", lambda: store.port)
    monkeypatch.setitem(ENVIRONMENT, "TORCHELASTIC_USE_AGENT_STORE", "True")
    env.configure(SETTINGS + '[model]\nname = "nowhere:Net"\n')
    ranks = launch(2)
    assert sorted(ranks.exit_codes()) in ([2, 2], [2, 3])  # 3: it has heard of the other's
    told = ranks.text(0, "err") + ranks.text(1, "err")
    assert told.count("springtide: ") == 1, told


def test_a_rank_that_torchrun_has_started_starts_no_ranks(env, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "--ranks", "2", "--config", str(env.path)]) == 2
    assert "leave out --ranks" in capsys.readouterr().err


def launch_in_file(path: Path, arguments: list[str]) -> None:
    with path.open("w") as file:
        os.dup2(file.fileno(), 2)
        os._exit(start_ranks(arguments, num_ranks=2, max_restarts=5))


def test_ranks_that_end_with_an_error_of_the_user_are_not_started_again(tmp_path):
    CONTEXT.set_forkserver_preload(PRELOAD)
    path = tmp_path / "err"
    process = CONTEXT.Process(target=launch_in_file, args=(path, ["nonsense"]))
    process.start()
    process.join(6 * DEADLINE_SECONDS)
    assert process.exitcode == 2, path.read_text()
    assert 1 <= path.read_text().count("no command 'nonsense'") <= 2  # each rank reads its command line


class KilledError(Exception):
    """Stands for SIGKILL: nothing more is published."""


def learned(trainer: Trainer):
    """Run to the end; return everything that the rank has learned."""
    release, found = trainer._release, []

    def take_and_release() -> None:
        found.append(snapshot(trainer.state))
        release()

    trainer._release = take_and_release
    trainer.run()
    del found[0]["state.random"]  # torch's generator is one for all threads, which the ranks are here
    return found[0]


def run_and_die(trainer: Trainer) -> None:
    """Learn five batches, publish with the exact state of the net, learn three more, and die."""
    learn, batches = trainer.learn, []

    def learn_some(batch) -> None:
        learn(batch)
        batches.append(batch)
        if len(batches) == 5:
            trainer.publisher.publish(trainer.session, exact=True)
            wait_until(lambda: trainer.log.durable.number == trainer.log.last_number, "a durable version")
        if len(batches) == 8 and trainer.ranks.is_first:
            raise KilledError

    trainer.learn = learn_some
    trainer.run()


def test_killed_ranks_go_on_bit_by_bit_with_the_exact_state_of_the_net_beside_the_log(env, tmp_path):
    env.create(partitions=2)
    env.produce(500, partition=0)
    env.produce(300, partition=1)
    env.configure(
        {"source": {"bootstrap_servers": env.broker.address}, "log": {"exact_bytes": 0}},
        {"train": {"max_wait_seconds": math.inf, "batch_size": 32}},
    )
    whole = on_trainers(env, 2, learned, until_end=True)

    env.configure({"log": {"path": tmp_path / "other"}})
    with pytest.raises(KilledError):
        on_trainers(env, 2, run_and_die, until_end=True)
    assert 0 < records(env)[-1].meta.samples_trained < 800
    for one, other in zip(whole, on_trainers(env, 2, learned, until_end=True), strict=True):
        assert_same(one, other)
