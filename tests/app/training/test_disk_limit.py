"""Ids that never come back do not stop learning, and log and spill keep disk_bytes: real log, spill and compactor."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from springtide.app.training.trainer import Trainer
from springtide.app.version_log.compact.compactor import Compactor
from springtide.app.version_log.disk_budget import folder_bytes
from springtide.stream.kafka.producer import Producer
from springtide_client.log.directory import LogDirectory
from tests.app.training.trainer_env import TrainerEnv
from tests.support.waiting import DEADLINE_SECONDS

MIB = 1 << 20


def limit(env: TrainerEnv, disk_bytes: int) -> None:
    env.configure({"table": {"disk_bytes": disk_bytes, "device_bytes": "2MiB"}, "train": {"batch_size": 500}})


def produce_new_ids(env: TrainerEnv, num: int, *, is_clock_moving: bool = True) -> None:
    env.create()
    with Producer(env.kafka) as producer:
        for number in range(env.num, env.num + num):
            click = {"user_id": number, "item_id": number, "age": number % 80, "click": number % 3 == 0}
            click["ts"] = 1_700_000_000_000 + (number if is_clock_moving else 0)
            producer.send("clicks", json.dumps(click).encode())
        producer.flush(DEADLINE_SECONDS)
    env.num += num


@contextmanager
def compactor_and_disk(env: TrainerEnv) -> Iterator[list[int]]:
    """Run a compactor; measure log and spill all the time. The list holds the most bytes so far."""
    ended, most = threading.Event(), [0]

    def measure() -> None:
        while not ended.wait(0.005):
            most[0] = max(most[0], sum(folder_bytes(env.config.log.path.parent / name) for name in ("log", "spill")))

    compactor = Compactor(env.config.log, window_samples=env.config.train.window_samples)
    threads = [threading.Thread(target=compactor.run, args=(ended,)), threading.Thread(target=measure)]
    for thread in threads:
        thread.start()
    yield most
    ended.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)


def known(env: TrainerEnv, ids: range) -> int:
    view = env.view()
    return sum(view.row_info(0, number)["status"] == "known" for number in ids)


def test_new_ids_without_end_are_all_learned_within_disk_bytes(env: TrainerEnv) -> None:
    limit(env, 6 * MIB)
    produce_new_ids(env, 8000)
    with compactor_and_disk(env) as most:
        assert Trainer(env.config, until_end=True).run().samples_trained == 8000
        produce_new_ids(env, 4000)  # after a restart
        assert Trainer(env.config, until_end=True).run().samples_trained == 12_000
    assert most[0] <= 1.25 * 6 * MIB
    assert known(env, range(11_000, 12_000)) == 1000
    assert known(env, range(1000)) == 0
    base = LogDirectory(env.config.log.path).open_base()
    assert base is not None
    assert folder_bytes(base.path) <= 3 * MIB * 5 / 16


@pytest.mark.parametrize("exact_bytes", [1 << 20, 1], ids=["small net", "large net"])
def test_ids_of_one_time_are_forgotten_in_the_order_in_which_they_came(env: TrainerEnv, exact_bytes: int) -> None:
    limit(env, 6 * MIB)
    env.configure({"log": {"exact_bytes": exact_bytes}})
    produce_new_ids(env, 12_000, is_clock_moving=False)
    with compactor_and_disk(env) as most:
        assert Trainer(env.config, until_end=True).run().samples_trained == 12_000
    assert most[0] <= 1.25 * 6 * MIB
    assert known(env, range(11_000, 12_000)) == 1000
    assert known(env, range(1000)) == 0


def test_a_log_beyond_a_lowered_limit_shrinks_and_learning_goes_on(env: TrainerEnv) -> None:
    limit(env, 48 * MIB)
    produce_new_ids(env, 10_000)
    with compactor_and_disk(env):
        Trainer(env.config, until_end=True).run()
    produce_new_ids(env, 2000)
    limit(env, 6 * MIB)
    with compactor_and_disk(env):
        assert Trainer(env.config, until_end=True).run().samples_trained == 12_000
    assert folder_bytes(env.config.log.path) <= 3 * MIB * 1.25
    assert known(env, range(11_900, 12_000)) == 100
