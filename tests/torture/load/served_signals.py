"""Served as trained while the trainer is killed: what answers say that they read is what the trainer reads.

`python -m tests.torture.load.served_signals`. Every sample is asked for over HTTP at its time before it is sent, and
brings back the hash of its answer if that was complete. In the end the trainer must have found every hash equal.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from springtide.app.version_log.trainer_status import MemoryCheckStatus
from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.support.waiting import wait_until
from tests.torture.cluster.site import Site, is_running
from tests.torture.load.clients import Client
from tests.torture.random_faults import seed_of

NUM_USERS, NUM_ITEMS, CANDIDATES, PAUSE_SECONDS = 2_000, 200, 5, 0.03
SETTINGS = {
    "schema": {"categorical": ["user_id", "item_id", "category"], "multi_value": ["genres"], "dense": ["age", "price"]},
    "sequences": {
        "clicked": {"key": "user_id", "when": "click", "keep": ["item_id", "category"], "last": 20, "gap": True},
        "shown": {"key": "user_id", "keep": ["category"], "last": 10, "distinct": "category", "ttl_seconds": 60},
    },
    "remember": {"item_id": ["genres", "price"], "user_id": ["age"]},
    "counters": {
        "item": {
            "key": "item_id",
            "count": ["shown", "click"],
            "half_lives": ["1m", "1h"],
            "rates": {"ctr": ["click", "shown"]},
        },
        "pair": {"key": ["user_id", "category"], "count": ["click"], "half_lives": ["10m"]},
    },
    "memory": {"check": "signals", "delay_seconds": 3, "tick_seconds": 2},
    "train": {"batch_size": 64, "max_wait_seconds": 0.05},
}


class ServedSignals(Site):
    """Trainer, server and broker; a sender that asks before it sends."""

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool, *, ranks: int = 1) -> None:
        self._random, self._port, self._num_ranks = random.Random(seed), free_port(), ranks
        super().__init__(folder, process_pool, SETTINGS, {"serve": {"port": self._port}}, partitions=ranks)
        self.answers: Counter[str] = Counter()  # by X-Springtide-Memory, or what else they were
        self.num_sent = self.num_late = 0
        self._trainer, self._server = self._start_trainer(), self.start("serve")
        self._send([{}] * CANDIDATES, self._candidates(), self._now_ms())
        self._is_starting = True
        self._client = Client(self._port, lambda: self._is_starting, Counter())
        wait_until(lambda: self._client.request("GET", "/readyz") is not None, "the server's readiness")
        self._is_starting = False

    def run(self, seconds: float, kill_seconds: float) -> None:
        """Ask and send for so long; kill the trainer every `kill_seconds`."""
        began = killed = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            if now > killed + kill_seconds:
                self.kill(self._trainer)
                self._trainer, killed = self._start_trainer(), now
            self._ask_and_send()
            time.sleep(PAUSE_SECONDS)  # sets the rate of the stream

    def require_equal(self) -> MemoryCheckStatus:
        """Wait until all is learned; AssertionError if anything was served otherwise than it was trained.

        Of several partitions one may be ahead of another while a killed trainer catches up: that is counted as late.
        """
        wait_until(lambda: self.status().samples_trained == self.num_sent, "the trainer's end", seconds=300)
        status = self.status()
        assert status.memory_check is not None
        what = f"{status.memory}, {status.memory_check}, {self.num_late} sent too late"
        print(what, flush=True)
        # now and then a user is asked about so often that a row has no room for what waits to be read
        assert status.memory["early"] == 0 or self.num_late, what
        assert status.memory["late"] == 0 or self.num_late or self._num_ranks > 1, what
        assert status.memory_check.unequal == 0 or status.memory["late"] or status.memory["dropped"], what
        assert status.memory_check.equal + status.memory_check.unequal == CANDIDATES * self.answers["complete"]
        return status.memory_check

    def close(self) -> None:
        self._client.close()
        for pid in (self._trainer, self._server):
            if is_running(pid):
                os.kill(pid, signal.SIGTERM)
                self.process_pool.wait(pid, 120.0)
        super().close()

    def _start_trainer(self) -> int:
        return self.start("train", *(["--ranks", str(self._num_ranks)] if self._num_ranks > 1 else []))

    def _ask_and_send(self) -> None:
        context, candidates = {"user_id": self._random.randrange(NUM_USERS)}, self._candidates()
        body = msgspec.json.encode({"context": context, "candidates": candidates, "signals": True})
        found = self._client.request("POST", "/v1/predict", body, Content_Type="application/json")
        if found is None:
            self.answers["refused"] += 1
            self._send([context] * CANDIDATES, candidates, self._now_ms())
            return
        headers, content = found
        answer, memory = msgspec.json.decode(content), headers["x-springtide-memory"]
        self.answers[memory] += 1
        signals = answer["signals"] if memory == "complete" else [None] * CANDIDATES
        contexts = [context | ({} if text is None else {"signals": text}) for text in signals]
        self._send(contexts, candidates, answer["time"])

    def _send(self, contexts: list[dict[str, object]], candidates: list[dict[str, object]], time_ms: int) -> None:
        """Send what was shown and clicked, with fields that only records bring."""
        records = []
        for context, candidate in zip(contexts, candidates, strict=True):
            item = int(str(candidate["item_id"]))
            brought: dict[str, object] = {"ts": time_ms, "click": int(self._random.random() < 0.1 + 0.4 * (item % 3))}
            if self._random.random() < 0.3:
                brought |= {"price": float(self._random.randrange(100)), "age": float(self._random.randrange(90))}
            if self._random.random() < 0.3:
                brought["genres"] = self._random.sample(range(9), self._random.randrange(3))
            records.append(msgspec.json.encode({**context, **candidate, **brought}))
        self.send(records, partition=self._random.randrange(self._num_ranks))
        self.num_sent += len(records)
        self.num_late += self._now_ms() > time_ms + 1000 * int(SETTINGS["memory"]["delay_seconds"])

    def _candidates(self) -> list[dict[str, object]]:
        items = self._random.sample(range(NUM_ITEMS), CANDIDATES)
        return [{"item_id": item, "category": item % 7} for item in items]

    def _now_ms(self) -> int:
        return int(time.time() * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="served_signals", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--kill-seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=1, help="of the trainer, and partitions of the topic")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    options = parser.parse_args()
    seed = seed_of(options)
    print(f"served signals: seed {seed}, {options.seconds:g} s", flush=True)
    process_pool = ProcessPool()
    with tempfile.TemporaryDirectory(prefix="served-signals-") as folder:
        served = ServedSignals(Path(folder), seed, process_pool, ranks=options.ranks)
        try:
            served.run(options.seconds, options.kill_seconds)
            check = served.require_equal()
        except BaseException:
            print(served.output(), flush=True)
            raise
        finally:
            served.close()
            process_pool.close()
    print(f"answers: {dict(served.answers)}; sent too late: {served.num_late} of {served.num_sent} samples")
    print(f"served signals: {check.equal} equal, {check.unequal} unequal, {served.num_kills} kills", flush=True)


if __name__ == "__main__":
    main()
