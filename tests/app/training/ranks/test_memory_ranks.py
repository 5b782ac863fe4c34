"""Several ranks remember together: what samples read is what one rank reads, and what the oracle says."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from springtide.app.training.trainer import Trainer
from springtide.app.version_log.trainer_status import TrainerStatus
from springtide.embeddings.errors import ShardError
from springtide.stream.columns import Batch
from springtide.stream.kafka.producer import Producer
from springtide_client.counters import ALL_ID, pair_ids
from springtide_client.hot_model import HotModel
from springtide_client.memory import read_rows
from springtide_client.model.view import KNOWN, View
from tests.app.training.ranks.thread_trainers import on_trainers
from tests.app.training.test_memory import FEATURES, START_MS, with_all
from tests.app.training.trainer_env import TrainerEnv
from tests.support.config import Section
from tests.support.kafka import create_topic
from tests.support.waiting import DEADLINE_SECONDS

PARTITIONS, NUM, USERS, ITEMS = 4, 480, 60, 12
# the partitions of a finished topic are read in any order, so all of it may be late
SETTINGS: Section = {
    "source": {"topic": "clicks"},
    "train": {"batch_size": 16, "max_wait_seconds": 0.05},
    "sequences": {
        "clicked": {"key": "user_id", "when": "click", "keep": ["item_id", "shop_id"], "last": 5, "gap": True},
        "shown": {"key": "user_id", "keep": ["item_id"], "last": 4, "distinct": "item_id", "ttl_seconds": 400},
    },
    "remember": {"item_id": ["tags", "price"]},
    "counters": {
        "item": {
            "key": "item_id",
            "count": ["shown", "click"],
            "half_lives": ["5m"],
            "rates": {"ctr": ["click", "shown"]},
        },
        "pair": {"key": ["user_id", "item_id"], "count": ["click"], "half_lives": ["10m", "1h"]},
    },
    "memory": {"tick_seconds": 60, "delay_seconds": 180, "lateness_seconds": 600, "check": "signals"},
}
Read = dict[int, dict[str, Any]]  # what was read of memory, by the time of a sample


def clicks(num: int, seed: int = 0) -> list[dict[str, Any]]:
    """Samples of ten minutes, no two at one time."""
    rng, rows = np.random.default_rng(seed), []
    for n in range(num):
        item = int(rng.integers(ITEMS))
        row = {"user_id": int(rng.integers(USERS)), "item_id": item, "shop_id": item % 3, "ts": START_MS + 1200 * n}
        row["click"] = int(rng.random() < 0.5)
        if rng.random() < 0.5:
            row["price"], row["tags"] = float(n), [item % 4, n]
        rows.append(row)
    return rows


def send(env: TrainerEnv, rows: Sequence[Mapping[str, Any]]) -> None:
    create_topic(env.broker.address, "clicks", num_partitions=PARTITIONS)
    with Producer(env.kafka) as producer:
        for n, row in enumerate(rows):
            producer.send("clicks", json.dumps(row).encode(), partition=n % PARTITIONS, record_ms=row["ts"])
        producer.flush(DEADLINE_SECONDS)


def learn(env: TrainerEnv, num_ranks: int) -> tuple[Read, TrainerStatus]:
    """Learn all that was sent; return what each sample read of memory, and the status."""
    found: Read = {}

    def work(trainer: Trainer) -> TrainerStatus:
        schema, learn_batch = env.config.schema, trainer.state.learner.start_step

        def note(batch: Batch, *rest: Any) -> Any:
            features = batch.features
            for n, ms in enumerate(batch.event_ms_N.tolist()):
                lists = zip(schema.lists, features.lists, strict=True)
                read = {name: one.ids_M[one.offsets[n] : one.offsets[n + 1]].tolist() for name, one in lists}
                numbers = zip(schema.dense, features.dense_NF[n].tolist(), strict=True)
                found[ms] = read | {name: None if np.isnan(number) else number for name, number in numbers}
            return learn_batch(batch, *rest)

        trainer.state.learner.start_step = note
        return trainer.run()

    status, *_ = on_trainers(env, num_ranks, work, until_end=True)
    return found, status


def expected(env: TrainerEnv, rows: Sequence[Mapping[str, Any]]) -> Read:
    """What the oracle says."""
    names = ("clicked.item_id", "clicked.shop_id", "clicked.gap", "shown.item_id", "tags")
    whole = with_all(rows, env.config.schema.memories)
    return {row["ts"]: {name: row.get(name) or [] for name in names} | {"price": row.get("price")} for row in whole}


def readable(view: View) -> list[Any]:
    """What samples of several times would read of every row."""
    found = []
    for memory in view.schema.memories:
        number = np.full(USERS, view.schema.memory_number(memory), np.uint16)
        rows, status = view.lookup(number, np.arange(USERS))
        for minutes in (6, 9, 11, 30):
            times_U = np.full(USERS, START_MS + 60_000 * minutes)
            found.append([status.tolist(), *(column.tolist() for column in read_rows(rows, memory, times_U))])
    for counter in view.schema.counters:
        number = np.array([view.schema.memory_number(counter)], np.uint16)
        ids = np.append(np.arange(USERS), ALL_ID)
        if len(counter.key) > 1:
            ids = pair_ids(np.repeat(np.arange(USERS), ITEMS), np.tile(np.arange(ITEMS), USERS))
        rows, status = view.lookup(number, ids)
        assert (status == KNOWN).any()
        found.append([status.tolist(), np.nan_to_num(rows).tolist()])
    return found


def test_samples_of_any_number_of_ranks_read_what_the_oracle_says(env: TrainerEnv) -> None:
    rows = clicks(NUM)
    env.configure(FEATURES, SETTINGS, {"source": {"bootstrap_servers": env.broker.address}})
    send(env, rows)
    views = []
    for num_ranks in (1, 2, 4):
        env.configure({"log": {"path": str(env.config.log.path.parent / f"log-{num_ranks}")}})
        found, status = learn(env, num_ranks)
        assert (status.memory["dropped"], status.memory["early"]) == (0, 0)
        assert found.keys() == {row["ts"] for row in rows}
        views.append(readable(env.view()))
    assert views[0] == views[1] == views[2]
    # within one run samples may come before what they should read, as partitions are read in any order; not after it
    more = [row | {"ts": row["ts"] + 1_500_000} for row in clicks(120, seed=1)]
    send(env, more)
    wanted, all_found = expected(env, [*rows, *more]), []
    for num_ranks in (1, 2, 4):
        env.configure({"log": {"path": str(env.config.log.path.parent / f"log-{num_ranks}")}})
        found, _ = learn(env, num_ranks)
        all_found.append(found)
        remembered = {ms: {name: one[name] for name in wanted[ms]} for ms, one in found.items()}
        assert remembered == {row["ts"]: wanted[row["ts"]] for row in more}
    assert all_found[0] == all_found[1] == all_found[2]  # counters too, whose oracle is another test's
    assert sum(bool(one["clicked.item_id"]) for one in found.values()) > 60
    assert len({one["item.ctr.5m"] for one in found.values()}) > 10


def test_another_number_of_ranks_goes_on_from_what_was_remembered(env: TrainerEnv) -> None:
    rows = clicks(NUM)
    env.configure(FEATURES, SETTINGS)
    send(env, rows[:240])
    learn(env, 2)
    later = [row | {"ts": row["ts"] + 900_000} for row in rows[240:]]
    with HotModel(env.config.log.path) as model:
        served = model.signals([{name: value for name, value in row.items() if name != "click"} for row in later[:40]])
    brought = [row | {"signals": text} for row, text in zip(later, served, strict=False)]
    send(env, [*brought[:39], brought[39] | {"user_id": USERS - 1}])
    found, status = learn(env, 3)
    assert (status.memory_check.equal, status.memory_check.unequal) == (39, 1)
    assert status.memory_check.unequal_by_feature.keys() <= {"clicked.item_id", "shown.item_id"}
    assert sum(bool(found[row["ts"]]["clicked.item_id"]) for row in later[:40]) > 10
    send(env, [row | {"signals": served[0]} for row in brought[:1]])
    _, status = learn(env, 1)
    assert (status.memory_check.equal, status.memory_check.unequal) == (40, 1)


def test_ranks_that_own_nothing_of_a_step_answer_the_others(env: TrainerEnv) -> None:
    counters = {"counters": {"item": {"key": "item_id", "count": ["shown"], "half_lives": ["5m"]}}}
    env.configure(FEATURES, counters, {"train": {"batch_size": 1}, "source": {"topic": "clicks"}})
    rows = clicks(8)
    send(env, rows[:4])
    with Producer(env.kafka) as producer:
        for partition in range(PARTITIONS):
            producer.send("clicks", b"{", partition=partition)
        producer.flush(DEADLINE_SECONDS)
    status, *_ = on_trainers(env, 2, until_end=True)
    assert (status.samples_trained, sum(status.dead_letters.values())) == (4, PARTITIONS)
    send(env, rows[4:])
    status, *_ = on_trainers(env, 3, until_end=True)
    assert status.samples_trained == 8


def test_an_owner_that_fails_ends_every_rank(env: TrainerEnv) -> None:
    env.configure(FEATURES, SETTINGS)
    send(env, clicks(64))

    def work(trainer: Trainer) -> TrainerStatus:
        if trainer.ranks.rank == 1:
            table = trainer.state.learner.memory.tables["clicked"]
            table.lookup_unique = lambda unique: (_ for _ in ()).throw(RuntimeError("the disk is gone"))
        return trainer.run()

    with pytest.raises((RuntimeError, ShardError), match=r"the disk is gone|another rank failed"):
        on_trainers(env, 2, work, until_end=True)
