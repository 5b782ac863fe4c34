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

from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.support.waiting import wait_until
from tests.torture.clicks import message
from tests.torture.cluster.config import TORTURED
from tests.torture.cluster.site import Site, is_running
from tests.torture.load.clients import ARROW, JSON, MSGPACK, RAW, Client, Clients
from tests.torture.load.response_verifier import ResponseVerifier
from tests.torture.random_faults import seed_of

# the load continues until responses to all of these were compared
REQUEST_KINDS = {RAW, JSON, MSGPACK, ARROW, "predict", "snapshot", "HotModel, directory", "HotModel, http"}
GRACE_SECONDS = 300.0
PUBLISH_SECONDS, TICK_SECONDS, RECORDS_PER_TICK = 0.5, 0.1, 30
# bound of a process's growth from the middle third of its life to the last
MAX_GROWTH_RATIO, MAX_GROWTH_BYTES = 1.10, 16 << 20


class MixedLoad(Site):
    """Trainer, server, broker and clients."""

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool, *, workers: int) -> None:
        self._seed, self._num_workers, self._port, self._num_produced = seed, workers, free_port(), 0
        settings = {
            "train": {"max_wait_seconds": 0.1},
            "log": {"publish_seconds": PUBLISH_SECONDS, "base_minutes": 0.1},
            "serve": {"port": self._port, "workers": workers},
        }
        super().__init__(folder, process_pool, TORTURED, settings)
        self.num_restarts = 0
        self._is_restarting = False
        self.memory: dict[int, list[int]] = {}
        self._trainer, self._server = self.start("train"), self.start("serve")
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
                self.process_pool.wait(pid, 120.0)
        self.verifier.close()
        super().close()

    def _produce(self) -> None:
        offsets = range(self._num_produced, self._num_produced + RECORDS_PER_TICK)
        self.send([message(self._seed, offset) for offset in offsets])
        self._num_produced += RECORDS_PER_TICK

    def _is_ready(self) -> bool:
        client = Client(self._port, lambda: True, Counter())
        try:
            return client.request("GET", "/readyz") is not None
        finally:
            client.close()

    def _kill_trainer(self) -> None:
        self.kill(self._trainer)
        self._trainer = self.start("train")

    def _restart_workers(self) -> None:
        before = self._workers()
        os.kill(self._server, signal.SIGHUP)
        wait_until(lambda: not before & self._workers(), "other workers")
        self.num_restarts += 1

    def _restart_server(self) -> None:
        self._is_restarting = True
        os.kill(self._server, signal.SIGTERM)
        wait_until(lambda: not is_running(self._server), "the server's end")
        self._server = self.start("serve")
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
    seed = seed_of(options)
    print(f"mixed load: seed {seed}, {options.seconds:g} s", flush=True)
    process_pool = ProcessPool()
    with tempfile.TemporaryDirectory(prefix="mixed-load-") as folder:
        load = MixedLoad(Path(folder), seed, process_pool, workers=2)
        try:
            load.run(options.seconds)
            load.check_memory()
        except BaseException:
            print(load.output(), flush=True)
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
