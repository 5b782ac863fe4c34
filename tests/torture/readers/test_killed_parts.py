"""Servers of parts are killed and started again while versions are written: a router's answers are never mixed."""

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from tests.app.serving.conftest import USER, World, new_log
from tests.app.serving.parts.conftest import raw
from tests.support.config import write_config
from tests.support.logs import HandWrittenLog
from tests.support.ports import free_port
from tests.support.processes import start_springtide
from tests.support.scale import IS_LONG
from tests.support.waiting import wait_until

IDS = list(range(200))
NUM_KILLS, PUBLISH_SECONDS = 12, 0.05
SETTINGS = """
name = "toy"
[schema]
labels = ["click", "order"]
categorical = ["user_id", "item_id"]
multi_value = ["genres"]
sequence = ["last_items"]
dense = ["age"]
share = { last_items = "item_id" }
[log]
path = "log"
"""


@pytest.fixture
def log(tmp_path) -> HandWrittenLog:
    """A log in a folder with its settings."""
    write_config(tmp_path / "springtide.toml", SETTINGS)
    log = new_log(tmp_path / "log")
    log.start_epoch()
    return log


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is to be closed when a test ends."""
    with ExitStack() as opened:
        yield opened


class Writer:
    """Appends versions in a thread: in version n every row of the users is n, n, n, n."""

    def __init__(self, log) -> None:
        self.log, self.done = log, threading.Event()
        self.values: dict[int, float] = {}
        self.publish()
        self.thread = threading.Thread(target=self.run)

    def publish(self) -> None:
        value = float(len(self.values))
        self.values[self.log.publish({(USER, i): [value] * 4 for i in IDS})] = value

    def run(self) -> None:
        while not self.done.wait(PUBLISH_SECONDS):
            self.publish()
            if len(self.values) % 40 == 0:
                self.log.write_base()

    def stop(self) -> None:
        self.done.set()
        self.thread.join()


def is_whole_answer(router, writer: Writer, kinds: dict[str, int]) -> bool:
    """Ask for rows and for neighbors; check that all rows of an answer are of its version. False for a 503."""
    neighbors = router.get(f"/v1/embeddings/user_id/{IDS[0]}/neighbors?k={len(IDS)}&metric=dot")
    for response in (raw(router, "user_id", IDS), neighbors):
        if response.status_code != 200:
            code = response.json()["error"]["code"]
            assert code in ("part_unavailable", "versions_differ", "not_ready"), response.text
            assert int(response.headers["retry-after"]) >= 1
            kinds[code] = kinds.get(code, 0) + 1
            return False
        number = int(response.headers["x-springtide-version"])
        wait_until(lambda number=number: number in writer.values)
        value = writer.values[number]
        if response is neighbors:
            scores = {found["id"]: found["score"] for found in response.json()["neighbors"]}
            assert scores == dict.fromkeys(IDS[1:], 4 * value * value)
        else:
            assert (np.frombuffer(response.content[: 16 * len(IDS)], "<f4") == value).all()
    kinds["ok"] = kinds.get("ok", 0) + 1
    return True


@pytest.mark.skipif(not IS_LONG, reason="long: make torture kills servers of parts")
def test_after_each_kill_answers_come_again_and_none_is_mixed(tmp_path, log, stack) -> None:
    writer, ports = Writer(log), [free_port(), free_port()]
    dice = random.Random(16)
    kinds: dict[str, int] = {}

    def start(number: int):
        arguments = ["serve", "--port", str(ports[number]), "--range", f"{number + 1}/2"]
        process = start_springtide(*arguments, folder=tmp_path)
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    parts = [start(0), start(1)]
    world = World(log)
    stack.callback(world.close)
    router = world.serve(parts=[f"http://127.0.0.1:{port}" for port in ports])
    writer.thread.start()
    stack.callback(writer.stop)

    def ask() -> bool:
        return is_whole_answer(router, writer, kinds)

    for _ in range(NUM_KILLS):
        wait_until(ask)
        for _ in range(dice.randrange(60)):
            ask()
        number = dice.randrange(2)
        if dice.random() < 0.3:  # it hangs, and is killed only then
            parts[number].send_signal(signal.SIGSTOP)
            ask()
        parts[number].kill()
        parts[number].wait()
        assert not ask()
        parts[number] = start(number)
    wait_until(ask)
    assert kinds["part_unavailable"] >= NUM_KILLS
    print(kinds)


@pytest.mark.skipif(not IS_LONG, reason="long: make torture changes the number of parts")
def test_two_parts_become_four_while_a_router_answers(log, stack) -> None:
    """The old router answers until its parts go, the new one once its parts are there; no answer is mixed."""
    writer, ports = Writer(log), [free_port() for _ in range(4)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    kinds: dict[str, int] = {}
    world = World(log)
    stack.callback(world.close)
    parts = [world.serve(port=ports[number], range=f"{number + 1}/2") for number in range(2)]
    old, new = world.serve(parts=urls[:2]), world.serve(parts=urls)
    writer.thread.start()
    stack.callback(writer.stop)
    wait_until(lambda: is_whole_answer(old, writer, kinds))
    assert not is_whole_answer(new, writer, kinds)
    for number in (3, 2, 1, 0):  # the last two take the places of the two that there were
        if number < 2:
            world.stop(parts[number])
        world.serve(port=ports[number], range=f"{number + 1}/4")
        if number > 1:
            wait_until(lambda: is_whole_answer(old, writer, kinds))
        else:
            assert not is_whole_answer(old, writer, kinds)
    wait_until(lambda: is_whole_answer(new, writer, kinds))
    refused = raw(old, "user_id", IDS).json()["error"]
    assert refused["code"] == "part_unavailable"
    assert "this server holds part" in refused["message"]
