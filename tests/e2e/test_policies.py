"""TTL, admission and LFU eviction in a table that is too small, through kills: every count is as expected."""

import json
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from springtide_client.keys import SHARED_ROW_OFFSET, encode_id
from springtide_client.model.view import FORGOTTEN, UNKNOWN, View
from tests.e2e.clicks import make_click
from tests.e2e.workspace import Workspace, read_view
from tests.support.config import edit_config
from tests.support.waiting import wait_until

TTL_MS, MIN_COUNT, BATCH, LARGEST_BATCH = 300_000, 3, 16, 64
NUM_CLICKS, NUM_USERS, NUM_ITEMS = 6_000, 500, 5_000
POLICIES = {
    "features": {"item_id": {"admission": {"min_count": MIN_COUNT}}, "user_id": {"ttl_seconds": TTL_MS // 1000}},
    "table": {
        "device_bytes": "1152KiB",
        "eviction": "lfu",
        "admission": {"min_count": 1, "sketch_bytes": "1MiB"},
    },
    "train": {"max_wait_seconds": float("inf")},  # batches are a function of the stream
    "log": {"base_minutes": 0.03},
}


def clicks_of_an_hour() -> list[dict]:
    random = np.random.default_rng(3)
    start_ms = int(time.time() * 1000) - 3_600_000
    clicks = [make_click(random, now_ms=start_ms + 400 * number) for number in range(NUM_CLICKS)]
    # a long tail: most items are seen once or twice
    return [click | {"item_id": f"item-{random.zipf(1.3) % NUM_ITEMS}"} for click in clicks]


@dataclass
class Expected:
    """The counts that a dictionary has after the same batches."""

    users: dict[int, tuple[int, int]] = field(default_factory=dict)  # count, last seen
    items: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)  # items without a row
    cutoff_ms: int = 0
    clock_ms: int = 0
    num_expired: int = 0

    def learn(self, batch: list[dict]) -> None:
        self.cutoff_ms = max(self.cutoff_ms, self.clock_ms - TTL_MS)
        alive = {user: row for user, row in self.users.items() if row[1] >= self.cutoff_ms}
        self.num_expired += len(self.users) - len(alive)
        self.users = alive
        for click in batch:
            count, seen = self.users.get(click["user_id"], (0, 0))
            self.users[click["user_id"]] = count + 1, max(seen, click["ts"], self.cutoff_ms)
        occurrences = Counter(item for click in batch for item in [click["item_id"], *click["last_items"]])
        for item, count in occurrences.items():
            if item in self.items or self.waiting[item] + count >= MIN_COUNT:
                self.items[item] += count
                self.waiting.pop(item, None)
            else:
                self.waiting[item] += count
        self.clock_ms = max([self.clock_ms, *(click["ts"] for click in batch)])


def assert_as_expected(view: View, expected: Expected) -> None:
    for user in range(NUM_USERS):
        count, seen = expected.users.get(user, (None, None))
        info = view.row_info(0, user)
        assert (info["count"], info["last_seen_ms"]) == (count, seen), user
    for number in range(NUM_ITEMS):
        item = f"item-{number}"
        info = view.row_info(1, encode_id(item)[0])
        waits = "not_admitted" if expected.waiting[item] else "unknown"
        assert (info["status"], info["count"]) == (
            ("known", expected.items[item]) if item in expected.items else (waits, None)
        ), item


def test_policies_hold_through_kills_as_without_kills(workspace: Workspace) -> None:
    workspace.configure(POLICIES)
    clicks = clicks_of_an_hour()
    address = workspace.start_broker()
    for start in range(0, 3_000, 1_500):
        workspace.produce([json.dumps(click).encode() for click in clicks[start : start + 1_500]])
        before = workspace.samples_trained()
        trainer = workspace.start("train")
        wait_until(lambda before=before: workspace.samples_trained() > before, "learning")
        workspace.stop(trainer, by=signal.SIGKILL)
    workspace.produce([json.dumps(click).encode() for click in clicks[3_000:]])
    status = workspace.train_until_end()
    assert status["samples_trained"] == NUM_CLICKS

    expected = Expected()
    start = 0
    while start < NUM_CLICKS:
        size = BATCH  # a batch has at most a 128th of the samples learned before it
        while size < LARGEST_BATCH and 2 * size * 128 <= start:
            size *= 2
        expected.learn(clicks[start : start + size])
        start += size
    assert min(expected.num_expired, len(expected.waiting), len(expected.items)) > 10
    killed = read_view(workspace.log)
    assert_as_expected(killed, expected)
    assert killed.meta.expiry_cutoffs == {"0": expected.cutoff_ms}

    other = shutil.copy(workspace.config, workspace.folder / "other.toml")
    own = {
        "source": {"bootstrap_servers": address},
        "table": {"disk_path": "other/spill"},
        "log": {"path": "other/log"},
    }
    edit_config(other, own)
    done = workspace.run("train", "--until-end", "--config", "other.toml")
    assert done.returncode == 0, done.stderr[-3000:]
    table = json.loads(done.stdout.strip().splitlines()[-1])["table"]
    for counter in ("evicted", "not_admitted", "admitted", "expired"):
        assert table[counter] > 0, counter

    undisturbed = read_view(workspace.folder / "other" / "log")
    features_K = np.repeat([0, 1, SHARED_ROW_OFFSET + 1], [NUM_USERS, NUM_ITEMS, 1]).astype(np.uint16)
    items = [encode_id(f"item-{number}")[0] for number in range(NUM_ITEMS)]
    ids_K = np.array([*range(NUM_USERS), *items, 0])
    (rows, status), (other_rows, other_status) = (view.lookup(features_K, ids_K) for view in (killed, undisturbed))
    np.testing.assert_array_equal(rows, other_rows)
    # an expired row is called forgotten until a base has dropped its record
    gone, other_gone = (np.where(codes == FORGOTTEN, UNKNOWN, codes) for codes in (status, other_status))
    np.testing.assert_array_equal(gone, other_gone)
    np.testing.assert_array_equal(
        killed.rows_for_model(features_K, ids_K)[0], undisturbed.rows_for_model(features_K, ids_K)[0]
    )
