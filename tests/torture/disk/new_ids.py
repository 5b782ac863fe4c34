"""`python -m tests.torture.disk.new_ids`: ids that never come back, through a small disk, with kills in between.

All must be learned, and log and spill together may exceed `disk_bytes` by a quarter for moments only.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from springtide.app.version_log.disk_budget import folder_bytes
from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide_client.system.settings import parse_size

CONFIG = """
name = "test"
[source]
topic = "clicks"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id"]
[table]
dim = 16
device_bytes = "{device}"
disk_bytes = "{disk}"
disk_path = "{folder}/spill"
[log]
path = "{folder}/log"
"""
FIRST_MS, CHUNK = 1_700_000_000_000, 200_000
POLL_SECONDS = 0.02


def clicks(start: int, stop: int, *, stands_still: bool) -> Iterator[bytes]:
    for number in range(start, stop):
        ts = FIRST_MS + (0 if stands_still else number)
        yield json.dumps({"user_id": number, "click": number % 3 == 0, "ts": ts}).encode()


class NewIds:
    """Produces ids in chunks, trains in processes of their own, kills them, and measures the disk all the time."""

    def __init__(self, folder: Path, options: argparse.Namespace, broker: EmbeddedBroker) -> None:
        self.folder, self.options, self.broker = folder, options, broker
        self.log, self.limit = folder / "log", parse_size(options.disk)
        config = CONFIG.format(folder=folder, disk=options.disk, device=options.device)
        (folder / "springtide.toml").write_text(config)
        self.most = self.produced = 0
        self.most_memory = 0
        self.random = random.Random(options.seed)

    def run(self) -> None:
        kills = sorted(self.random.sample(range(self.options.ids), self.options.kills))
        while self.produced < self.options.ids:
            self.produce()
            while True:
                due = kills[0] if kills and kills[0] < self.produced else None
                status = self.train(due)
                if due is None:
                    break
                kills.pop(0)
            assert status.samples_trained == self.produced, f"{status.samples_trained} of {self.produced} learned"
            print(
                f"{self.produced:,} ids: at most {self.most / 2**20:.1f} MiB of disk, {self.most_memory >> 10} MiB of "
                f"memory, {len(kills)} kills left",
                flush=True,
            )

    def produce(self) -> None:
        kafka = KafkaConfig(bootstrap_servers=self.broker.address)
        with Admin(kafka, patient=True) as admin:
            admin.ensure_topic("clicks", num_partitions=1)
        stop = min(self.options.ids, self.produced + CHUNK)
        with Producer(kafka, patient=True) as producer:
            for click in clicks(self.produced, stop, stands_still=self.options.stands_still):
                producer.send("clicks", click)
            producer.flush(60)
        self.produced = stop

    def train(self, kill_at: int | None) -> TrainerStatus:
        """Learn up to the end of the topic, or kill the trainer once it has learned so many."""
        command = [
            sys.executable,
            "-m",
            "springtide",
            "train",
            "--until-end",
            "--config",
            str(self.folder / "springtide.toml"),
        ]
        with (self.folder / "train.err").open("a") as errors:
            trainer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while trainer.poll() is None:
            self.measure(trainer.pid)
            learned = (read_status(self.log) or TrainerStatus()).samples_trained
            if kill_at is not None and learned >= kill_at:
                trainer.send_signal(signal.SIGKILL)
                trainer.wait()
            time.sleep(POLL_SECONDS)
        assert trainer.returncode in (0, -signal.SIGKILL), f"see {self.folder}/train.err"
        return read_status(self.log) or TrainerStatus()

    def measure(self, pid: int) -> None:
        self.most = max(self.most, folder_bytes(self.log) + folder_bytes(self.folder / "spill"))
        assert self.most <= 1.25 * self.limit, f"{self.most:,} bytes of disk for a limit of {self.limit:,}"
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        resident = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
        self.most_memory = max(self.most_memory, *resident, 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="new_ids", description=__doc__)
    parser.add_argument("--ids", type=int, default=250_000)
    parser.add_argument("--disk", default="16MiB")
    parser.add_argument("--device", default="4MiB")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stands-still", action="store_true", help="all clicks have the same timestamp")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="new-ids-") as name:
        folder = Path(name)
        with EmbeddedBroker(folder / "log") as broker:
            NewIds(folder, options, broker).run()
    print(f"{options.ids:,} new ids, {options.disk} of disk: {time.monotonic() - began:.0f} s, all learned")


if __name__ == "__main__":
    main()
