"""Trainers of several ranks under SIGKILL: single ranks, all ranks, launchers; the next launch has another number.

python -m tests.torture.ranks.kills --kills 100 --seed 1 [--join [--late settle]]

A producer sends clicks all the while. In the end every id must have been counted exactly as often as it was sent. With
--join it sends impressions, whose labels are the clicks of another topic: each must be learned once with its label.
With --late clicks after the window count too: each impression must be learned as often as that rule says.
"""

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from springtide.stream.broker.embedded import EmbeddedBroker
from tests.app.training.ranks.joined_traffic import JoinedTraffic
from tests.app.training.trainer_env import TrainerEnv, expected_counts
from tests.support.waiting import wait_until

PARTITIONS, MAX_RANKS = 3, 3
SETTINGS = "[cluster]\ntimeout_seconds = 20\n"
LAUNCH_SECONDS = 300.0


class Launch:
    """A trainer of so many ranks, by its launcher; or one process."""

    def __init__(self, env: TrainerEnv, num_ranks: int, *options: str) -> None:
        command = [sys.executable, "-m", "springtide", "train", "--no-compact", "--config", str(env.path), *options]
        if num_ranks > 1:
            command += ["--ranks", str(num_ranks), "--max-restarts", "1000"]
        self.num_ranks, self.errors = num_ranks, env.path.with_suffix(".errors")  # a pipe would fill, and block them
        with self.errors.open("w") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks that live."""
        if self.num_ranks == 1:
            return [self.process.pid]
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = [int(pid) for pid in path.read_text().split()] if path.exists() else []
        return [pid for pid in children if b"train" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def end(self) -> int:
        """Stop it as a user does; it publishes and ends. Return the exit code: 1 if a rank was just killed.

        It is SIGTERM's if that came while Python started, and SIGKILL's if its one process was just killed.
        """
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LAUNCH_SECONDS)
        assert code in (0, 1, -signal.SIGTERM, -signal.SIGKILL), f"exit code {code}: {self.errors.read_text()}"
        return code


class Clicks:
    """Finished samples, in so many partitions."""

    def __init__(self, env: TrainerEnv) -> None:
        self.env = env
        env.create(partitions=PARTITIONS)

    @property
    def num(self) -> int:
        return self.env.num

    @property
    def num_due(self) -> int:
        return self.env.num

    @property
    def num_samples(self) -> int:
        return self.env.num

    def send(self, draw: random.Random) -> None:
        self.env.produce(draw.randint(1, 300), partition=draw.randrange(PARTITIONS))

    def end(self) -> None:
        pass

    def compare(self) -> None:
        pass


class Impressions(JoinedTraffic):
    """Impressions, and their clicks in another topic."""

    def send(self, draw: random.Random) -> None:
        super().send(draw.randint(1, 300))

    def compare(self) -> None:
        status = self.env.status()
        assert status.dead_letters == self.refused
        assert math.isclose(status.scores.whole.label_rate or 0, sum(self.labels.values()) / self.num, abs_tol=1e-6)
        rule = self.label.late
        assert status.join.settled == (self.num if rule == "settle" else 0)
        assert status.join.late == (len(self.late) if rule == "importance_weighted" else 0)
        if rule == "ignore":
            return
        # F is of the last 2,000 positives, and differs by so much among those of a number
        share = sum(self.labels.values()) / (sum(self.labels.values()) + len(self.late))
        found = status.join.labels["click"].on_time_share
        assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / min(2000, self.num / 2)), (found, share)
        if rule == "scale":
            assert self.env.view().meta.label_shares == {"click": found}


def torture(env: TrainerEnv, stream: Clicks | Impressions, num_kills: int, seed: int) -> Counter[str]:
    """Kill so often; return what was done, by name."""
    random_ = random.Random(seed)
    env.configure(SETTINGS)
    done: Counter[str] = Counter()
    while done["kills"] < num_kills:
        launch = Launch(env, random_.randint(1, MAX_RANKS))
        done[f"launches of {launch.num_ranks}"] += 1
        for _ in range(random_.randint(1, 4)):
            stream.send(random_)
            goal = stream.num_due if random_.random() < 0.5 else 0
            wait_until(lambda goal=goal: env.status().samples_trained >= goal, "learning", seconds=LAUNCH_SECONDS)
            time.sleep(random_.choice([0.0, 0.05, 0.5, 3.0]))  # anywhere: while it starts, learns, publishes
            if not (ranks := launch.ranks()):
                continue
            victims = ranks if random_.random() < 0.3 else [random_.choice(ranks)]
            for pid in victims:
                with_signal(pid, signal.SIGKILL)
            done["kills"] += 1
            done["of all ranks"] += len(victims) == len(ranks)
            if launch.num_ranks == 1:
                break
        if launch.process.poll() is None and random_.random() < 0.5:
            done[f"stops with exit code {launch.end()}"] += 1
        else:
            ranks = launch.ranks()
            launch.process.kill()
            launch.process.wait()
            # the ranks of a killed launcher are asked to end by the kernel
            wait_until(lambda ranks=ranks: not any(map(is_alive, ranks)), "the ranks' end", seconds=LAUNCH_SECONDS)
            done["launchers killed"] += 1
        print(dict(done), f"{env.status().samples_trained} of {stream.num_samples} samples", flush=True)
    stream.end()
    last = Launch(env, random_.randint(1, MAX_RANKS), "--until-end")
    assert last.process.wait(LAUNCH_SECONDS) == 0, last.errors.read_text()
    assert env.status().samples_trained == stream.num_samples
    assert env.counts() == expected_counts(stream.num)
    stream.compare()
    return done


def with_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    if is_alive(pid):
        os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Return True if the process runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--join", action="store_true", help="labels are the events of another topic")
    parser.add_argument(
        "--late",
        choices=["scale", "settle", "importance_weighted", "ignore"],
        default="ignore",
        help="with --join: what clicks after the window change",
    )
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    with EmbeddedBroker(folder / "log") as broker:
        env = TrainerEnv(folder, broker)
        stream = Impressions(env, arguments.late) if arguments.join else Clicks(env)
        print(dict(torture(env, stream, arguments.kills, arguments.seed)))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
