"""Clicks of one topic become the labels of another's impressions, through kills: each impression is learned once."""

import json
import random
import signal
import time
from collections import Counter
from typing import Any

from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from tests.e2e.workspace import Workspace, read_view
from tests.support.kafka import produce
from tests.support.waiting import wait_until

WINDOW_MS, STEP_MS = 60_000, 100
SETTINGS = {
    "source": {"topic": "impressions"},
    "join": {"key": ["request"], "lateness_seconds": 2, "early_seconds": 1, "idle_seconds": 0.3},
    "labels": {"click": {"topic": "clicks", "window_seconds": WINDOW_MS / 1000}},
}


class Traffic:
    """Impressions of ten seconds a hundred, of which a third is clicked within the window, others too late."""

    def __init__(self) -> None:
        self.random = random.Random(5)
        self.start_ms = int(time.time() * 1000) - 3_600_000
        self.num, self.clicked = 0, Counter[str]()
        self.clicks: list[tuple[int, dict[str, Any]]] = []

    def send(self, address: str, num: int) -> None:
        """Send this many more impressions, and the clicks up to their time."""
        shown = []
        for n in range(self.num, self.num + num):
            ms, user = self.start_ms + n * STEP_MS, n % 97
            item = {
                "request": n,
                "user_id": user,
                "item_id": f"item-{n % 31}",
                "genres": [],
                "last_items": [],
                "age": 30,
            }
            shown.append(json.dumps(item | {"ts": ms}).encode())
            delay_ms = self.random.choice((500, 20_000, WINDOW_MS + 1, None, None))
            if delay_ms is not None:
                self.clicks.append((ms + delay_ms, {"request": str(n), "ts": ms + delay_ms}))
                self.clicked[str(user)] += delay_ms <= WINDOW_MS
        self.num += num
        now_ms = self.start_ms + self.num * STEP_MS
        due = sorted((click for click in self.clicks if click[0] <= now_ms), key=lambda click: click[0])
        self.clicks = [click for click in self.clicks if click[0] > now_ms]
        produce(address, "impressions", shown)
        produce(address, "clicks", [json.dumps(click).encode() for _, click in due])

    def end(self, address: str) -> None:
        """Let time go on in both topics until all windows are over."""
        ms = self.start_ms + self.num * STEP_MS + 2 * WINDOW_MS
        produce(address, "clicks", [json.dumps(click).encode() for _, click in sorted(self.clicks, key=lambda c: c[0])])
        item = {
            "request": "end",
            "user_id": "end",
            "item_id": "end",
            "genres": [],
            "last_items": [],
            "age": 1,
            "ts": ms,
        }
        produce(address, "impressions", [json.dumps(item).encode()])
        produce(address, "clicks", [json.dumps({"request": "none", "ts": ms}).encode()])


def test_every_impression_is_learned_once_with_its_label_through_kills_and_another_join_is_refused(
    workspace: Workspace,
) -> None:
    workspace.configure(SETTINGS)
    address, traffic = workspace.start_broker(), Traffic()
    for _ in range(3):
        traffic.send(address, 2_000)
        before = workspace.samples_trained()
        trainer = workspace.start("train")
        wait_until(lambda before=before: workspace.samples_trained() > before, "learning")
        workspace.stop(trainer, by=signal.SIGKILL)
    traffic.end(address)
    status = workspace.train_until_end("--no-compact")
    assert status["samples_trained"] == traffic.num
    assert status["dead_letters"] == {}
    assert all(partition["lag"] == 0 for partition in status["positions"].values()), status["positions"]
    assert (status["join"]["impressions"], status["join"]["duplicates"]) == (1, 0)  # that of the end
    counts = Counter(str(n % 97) for n in range(traffic.num))
    workspace.start_server()
    assert {user: workspace.get(f"/v1/embeddings/user_id/{user}")["count"] for user in counts} == dict(counts)
    assert len(read_view(workspace.log).meta.trainer["join"]["cursors"]) == 2
    assert abs(status["scores"]["whole"]["label_rate"] - traffic.clicked.total() / traffic.num) < 1e-4

    workspace.configure({"labels": {"click": {"window_seconds": 30}}})
    done = workspace.run("train", "--until-end")
    assert done.returncode == 2
    assert "impressions+60000" in done.stderr
    assert "set them back" in done.stderr
    assert workspace.run("train", "--until-end", "--from-offset=earliest").returncode == 2

    workspace.configure({"labels": {"click": {"window_seconds": 60}}, "join": {"early_seconds": 2}})
    done = workspace.run("train", "--until-end")
    assert done.returncode == 2
    assert "another [join] early_seconds" in done.stderr


def test_the_status_names_the_topic_that_the_join_waits_for_and_nothing_is_learned_meanwhile(
    workspace: Workspace,
) -> None:
    workspace.configure(SETTINGS)
    address, traffic = workspace.start_broker(), Traffic()
    produce(address, "impressions", [json.dumps({"request": 1, "user_id": 1, "ts": traffic.start_ms}).encode()])
    trainer = workspace.start("train")

    def status() -> TrainerStatus:
        return read_status(workspace.log) or TrainerStatus()

    wait_until(lambda: status().blocked_by == "clicks", lambda: status().reason)
    assert (status().trainer, status().samples_trained) == ("waiting", 0)
    assert "there is no topic 'clicks'" in status().reason
    traffic.send(address, 1000)
    wait_until(lambda: status().samples_trained > 0 and status().blocked_by == "", lambda: status().reason)
    assert status().join.memory_bytes > 0
    workspace.stop(trainer)
