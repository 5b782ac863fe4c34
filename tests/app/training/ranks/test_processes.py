"""Ranks as processes, as torchrun starts them: one is killed, the other ends, and the next start loses nothing.

A server process imports what they need once, and forks them.
"""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import main
from app.training.trainer import Trainer
from tests.app.training.trainer_env import expected_counts
from tests.support.waiting import DEADLINE_SECONDS, wait_until

SETTINGS = """
[cluster]
timeout_seconds = 20
"""
CONTEXT = multiprocessing.get_context("forkserver")


def run_rank(rank: int, num_ranks: int, port: int, config: Path, folder: Path, options: list[str]) -> None:
    """What torchrun does in a rank: name it in the environment, and run the command."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
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
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.folder = env.path.parent
        self.all = [
            CONTEXT.Process(target=run_rank, args=(rank, num_ranks, port, env.path, self.folder, options))
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
    CONTEXT.set_forkserver_preload(["app.training.trainer", "app.commands.train"])
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
    os.kill(first.all[1].pid, signal.SIGKILL)
    assert first.exit_codes() == [1, -signal.SIGKILL], first.text(0, "err")
    assert "another rank has ended" in first.text(0, "err")
    assert env.status().trainer == "failed"

    env.produce(100, partition=1)
    assert Trainer(env.config, until_end=True).run().samples_trained == 400
    assert env.counts() == expected_counts(400)


def test_a_rank_that_torchrun_has_started_starts_no_ranks(env, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "--ranks", "2", "--config", str(env.path)]) == 2
    assert "leave out --ranks" in capsys.readouterr().err
