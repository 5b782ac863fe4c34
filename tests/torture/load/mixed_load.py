"""A server under mixed load while versions arrive, the trainer is killed and the server restarted.

`python -m tests.torture.load.mixed_load`. Every response is compared with the version that it names. Some 503s are
accepted; any other status above 499 fails.
"""

import argparse
import os
import re
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.support.processes import IMPORT_PATHS
from tests.support.waiting import wait_until
from tests.torture.clicks import message
from tests.torture.cluster.cluster import is_running
from tests.torture.cluster.config import TOPIC, write_config
from tests.torture.cluster.faulty_broker import FaultyBroker
from tests.torture.load.clients import ARROW, JSON, MSGPACK, RAW, Client, Clients
from tests.torture.load.response_verifier import ResponseVerifier

# the load continues until responses to all of these were compared
REQUEST_KINDS = {RAW, JSON, MSGPACK, ARROW, "predict", "snapshot", "HotModel, directory", "HotModel, http"}
GRACE_SECONDS = 300.0
PUBLISH_SECONDS, TICK_SECONDS, RECORDS_PER_TICK = 0.5, 0.1, 30
# bound of a process's growth from the middle third of its life to the last
MAX_GROWTH_RATIO, MAX_GROWTH_BYTES = 1.10, 16 << 20


class MixedLoad:
    """Trainer, server, broker and clients."""

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool, *, workers: int) -> None:
        self._folder, self._seed, self._process_pool, self._num_workers = folder, seed, process_pool, workers
        (folder / "disk").mkdir()
        self.log, self._port, self._broker = folder / "disk" / "log", free_port(), FaultyBroker()
        path = write_config(
            folder / "springtide.toml",
            folder,
            address=self._broker.address,
            port=self._port,
            publish=PUBLISH_SECONDS,
            base_minutes=0.1,
        )
        path.write_text(
            path.read_text().replace("max_wait_seconds = inf", "max_wait_seconds = 0.1") + f"workers = {workers}\n"
        )
        kafka = KafkaConfig(bootstrap_servers=self._broker.address)
        with Admin(kafka, patient=True) as admin:
            admin.ensure_topic(TOPIC)
        self._producer, self._num_produced = Producer(kafka, patient=True), 0
        self.num_kills, self.num_restarts = 0, 0
        self._is_restarting = False
        self.memory: dict[int, list[int]] = {}
        self._trainer, self._server = self._start("train"), self._start("serve")
        self._produce()
        self.verifier = ResponseVerifier(self.log)
        wait_until(self._is_ready, "the server's readiness")
        self.clients = Clients(self._port, self.log, self.verifier, lambda: self._is_restarting, seed)

    def run(self, seconds: float) -> None:
        """Run the load for `seconds`, kill the trainer twice, and restart the server.

        Several workers are also restarted one by one, during which every request must be answered.
        """
        events: list[tuple[float, Callable[[], None]]] = [
            (0.20, self._kill_trainer),
            *([(0.40, self._restart_workers)] if self._num_workers > 1 else []),
            (0.55, self._kill_trainer),
            (0.75, self._restart_server),
        ]
        began = time.monotonic()
        while not self.clients.has_failed:
            passed = time.monotonic() - began
            if (
                passed >= seconds
                and not events
                and (self.verifier.num_compared.keys() >= REQUEST_KINDS or passed > seconds + GRACE_SECONDS)
            ):
                break
            self._produce()
            if events and passed >= events[0][0] * seconds:
                events.pop(0)[1]()
            self._watch_memory()
            time.sleep(TICK_SECONDS)  # sets the rate of the stream
        self.clients.close()

    def check_memory(self) -> None:
        """Check the growth of every process that ran long enough."""
        for pid, sizes in self.memory.items():
            third = len(sizes) // 3
            if third * TICK_SECONDS >= 20:
                middle, last = statistics.median(sizes[third : 2 * third]), statistics.median(sizes[2 * third :])
                assert last <= MAX_GROWTH_RATIO * middle + MAX_GROWTH_BYTES, (
                    f"{pid} grew from {middle:,} to {last:,} bytes"
                )

    def close(self) -> None:
        self._is_restarting = True
        for pid in (self._trainer, self._server):
            if is_running(pid):
                os.kill(pid, signal.SIGTERM)
                self._process_pool.wait(pid, 120.0)
        self.verifier.close()
        self._producer.close()
        self._broker.close()

    def process_output(self) -> str:
        """Return the end of each process's output."""
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._folder.glob("*.out")))

    def _start(self, command: str) -> int:
        environment = {"PYTHONPATH": os.pathsep.join(IMPORT_PATHS)}
        out = self._folder / f"{command}.out"
        return self._process_pool.start([command], cwd=self._folder, out=out, environment=environment)

    def _produce(self) -> None:
        for offset in range(self._num_produced, self._num_produced + RECORDS_PER_TICK):
            self._producer.send(TOPIC, message(self._seed, offset))
        self._producer.flush()
        self._num_produced += RECORDS_PER_TICK

    def _is_ready(self) -> bool:
        client = Client(self._port, lambda: True, Counter())
        try:
            return client.request("GET", "/readyz") is not None
        finally:
            client.close()

    def _kill_trainer(self) -> None:
        os.kill(self._trainer, signal.SIGKILL)
        wait_until(lambda: not is_running(self._trainer), "the trainer's end")
        self.num_kills += 1
        self._trainer = self._start("train")

    def _restart_workers(self) -> None:
        before = self._workers()
        os.kill(self._server, signal.SIGHUP)
        wait_until(lambda: not before & self._workers(), "other workers")
        self.num_restarts += 1

    def _restart_server(self) -> None:
        self._is_restarting = True
        os.kill(self._server, signal.SIGTERM)
        wait_until(lambda: not is_running(self._server), "the server's end")
        self._server = self._start("serve")
        wait_until(self._is_ready, "the server's readiness")
        self._is_restarting = False
        self.num_restarts += 1

    def _workers(self) -> set[int]:
        return set(map(int, Path(f"/proc/{self._server}/task/{self._server}/children").read_text().split()))

    def _watch_memory(self) -> None:
        for pid in (self._trainer, self._server, *self._workers()):
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if found := re.search(r"RssAnon:\s+(\d+) kB", text):
                self.memory.setdefault(pid, []).append(int(found[1]) << 10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="mixed_load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="seed of records and requests; default: the time")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"mixed load: seed {seed}, {options.seconds:g} s", flush=True)
    process_pool = ProcessPool()
    with tempfile.TemporaryDirectory(prefix="mixed-load-") as folder:
        load = MixedLoad(Path(folder), seed, process_pool, workers=2)
        try:
            load.run(options.seconds)
            load.check_memory()
        except BaseException:
            print(load.process_output(), flush=True)
            raise
        finally:
            load.close()
            process_pool.close()
    for pid, sizes in load.memory.items():
        print(f"process {pid}: {sizes[0] >> 20} to {sizes[-1] >> 20} MiB, at most {max(sizes) >> 20}")
    print(f"responses: {dict(load.clients.responses)}; compared: {load.verifier.num_compared}")
    print(f"mixed load: {load.verifier.num_versions} versions, {load.num_kills} kills, no wrong response", flush=True)


if __name__ == "__main__":
    main()
