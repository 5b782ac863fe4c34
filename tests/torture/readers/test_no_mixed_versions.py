"""Readers check on every read that dense weights and rows belong to one version."""

import threading
from pathlib import Path

import numpy as np

from springtide_client.encode import encode_instances
from springtide_client.features import Features
from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from tests.support.scale import IS_LONG
from tests.support.toy_model import TOY_SCHEMA
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.torture.readers.stamped_log import KEYS, StampedLog, stamp_of

NUM_VERSIONS = 10_000 if IS_LONG else 500
NUM_COMPACTIONS, BATCH = 10, 5
INSTANCES = [{"user_id": 1, "item_id": 2, "genres": [1], "last_items": [2], "age": 30.0}]


class Reader(threading.Thread):
    """Reads until `is_over`; `wrong` holds the reads that mixed versions."""

    def __init__(self, follower: Follower, features: Features) -> None:
        super().__init__()
        self.follower, self.features = follower, features
        self.is_over = threading.Event()
        self.wrong: list[object] = []
        self.seen: set[int] = set()

    def run(self) -> None:
        while not self.is_over.is_set():
            view = self.follower.view
            if view is None or view.meta.step == 0:
                continue
            step, expected = view.meta.step, 1 / (1 + np.exp(-stamp_of(view.meta.step)))
            rows, status = view.lookup(*KEYS)
            probability = view.predict(self.features)[0, 0]
            if status.any() or (rows != step).any() or abs(probability - expected) > 2e-6:
                self.wrong.append((step, probability, expected, rows[:, 0]))
            self.seen.add(step)


def test_no_read_ever_mixes_two_versions(tmp_path: Path) -> None:
    log = StampedLog(tmp_path / "log")
    follower = Follower(LogDirectory(log.path))
    readers = [Reader(follower, encode_instances(TOY_SCHEMA, INSTANCES)) for _ in range(2)]
    follower.start()
    assert follower.wait_for_view(DEADLINE_SECONDS) is not None
    for reader in readers:
        reader.start()
    next_compaction = 0
    try:
        while log.step < NUM_VERSIONS:
            head = log.append(BATCH)
            # wait for the follower, else it would skip most versions
            wait_until(lambda head=head: follower.view.version >= head.number, f"{head}")
            if log.step >= next_compaction:
                next_compaction += NUM_VERSIONS // NUM_COMPACTIONS
                log.compact()
        wait_until(lambda: all(log.step in reader.seen for reader in readers), "reads of the last version")
    finally:
        for reader in readers:
            reader.is_over.set()
            reader.join()
        follower.close()
        log.writer.close()
    assert [wrong for reader in readers for wrong in reader.wrong] == []
    assert len(set.union(*(reader.seen for reader in readers))) > NUM_VERSIONS // 20
