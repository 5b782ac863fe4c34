"""What the stream is remembered for: trainers, servers and HotModel read what an oracle brings, bit by bit."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from springtide.app.errors import UserError
from springtide.app.tools.evaluate.report import evaluate_files
from springtide.app.training.commands import CommandExecutor
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.commands.queue import submit_command
from springtide.app.version_log.verify.verify import verify
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer
from springtide_client.errors import EncodeError
from springtide_client.hot_model import HotModel
from springtide_client.log.directory import LogDirectory
from springtide_client.memory import Memory
from springtide_client.model.view import KNOWN, View
from springtide_client.recall import times_of
from tests.app.serving.conftest import World
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.app.training.trainer_env import TrainerEnv
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog
from tests.support.memory_oracle import with_fields, with_sequences
from tests.support.waiting import DEADLINE_SECONDS

START_MS = 1_700_000_000_000
FEATURES: Section = {
    "schema": {"categorical": ["user_id", "item_id", "shop_id"], "multi_value": ["tags"], "dense": ["price"]},
    "features": {"tags": {"max_length": 3}},
}
REMEMBERED: Section = {
    "sequences": {
        "clicked": {"key": "user_id", "when": "click", "keep": ["item_id", "shop_id"], "last": 5, "gap": True}
    },
    "remember": {"item_id": ["tags", "price"]},
}
CLICKED = "clicked.item_id", "clicked.shop_id", "clicked.gap"
# the same features, brought by records
BROUGHT: Section = {
    "schema": {"sequence": list(CLICKED), "share": {"clicked.item_id": "item_id", "clicked.shop_id": "shop_id"}},
    "features": {name: {"max_length": 5} for name in CLICKED},
}


SEQUENCE = {"target": "item_id", "sequence": "clicked.item_id"}
# of random clicks
RANDOM: Section = {
    **RANDOM_CLICKS,
    "sequences": {"clicked": {"key": "user_id", "when": "click", "keep": ["item_id"], "last": 5}},
    "remember": {"user_id": ["age"]},
}


def clicks(num: int, seed: int = 0) -> list[dict[str, Any]]:
    """Samples of some users, whose items change their price and tags now and then."""
    rng, rows, ts = np.random.default_rng(seed), [], START_MS
    for _ in range(num):
        ts += int(rng.choice([0, 30, 400, 1100]))
        item = int(rng.integers(12))
        row = {"user_id": int(rng.integers(7)), "item_id": item, "shop_id": item % 3, "ts": ts}
        row["click"] = int(rng.random() < 0.2 + 0.05 * item)
        if rng.random() < 0.8:
            row["price"] = float(item + (ts - START_MS) // 60_000)
        if rng.random() < 0.8:
            row["tags"] = [item % 4, (ts - START_MS) // 90_000]
        rows.append(row)
    return rows


def with_all(rows: Sequence[Mapping[str, Any]], memories: Sequence[Memory]) -> list[dict[str, Any]]:
    made: Sequence[Mapping[str, Any]] = rows
    for memory in memories:
        made = with_sequences(made, memory) if memory.is_sequence else with_fields(made, memory)
    return list(map(dict, made))


def learn(env: TrainerEnv, rows: Sequence[Mapping[str, Any]], topic: str, *, cuts: Sequence[int] = ()) -> View:
    """Return what followers have once trainers, one for each part, have learned the rows."""
    env.configure({"source": {"topic": topic}})
    with Admin(env.kafka) as admin:
        admin.ensure_topic(topic, num_partitions=1)
    bounds = [0, *cuts, len(rows)]
    for start, stop in itertools.pairwise(bounds):
        with Producer(env.kafka) as producer:
            for row in rows[start:stop]:
                producer.send(topic, json.dumps(row).encode(), partition=0, record_ms=row["ts"])
            producer.flush(DEADLINE_SECONDS)
        status = Trainer(env.config, until_end=True).run()
        assert status.samples_trained == stop, status.reason
    return env.view()


def check_same(view: View, expected: View) -> None:
    """AssertionError unless both predict the same by the same rows, bit by bit."""
    for number in range(expected.schema.unused_number):
        key, ids = np.array([number], np.uint16), np.arange(-2, 40)
        for ours, theirs in zip(view.lookup(key, ids), expected.lookup(key, ids), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def later(rows: Sequence[Mapping[str, Any]], num: int) -> list[dict[str, Any]]:
    """Return samples that come after these."""
    after_ms = rows[-1]["ts"] - START_MS + 700
    return [{**row, "ts": row["ts"] + after_ms, "click": 0} for row in clicks(num, seed=1)]


@pytest.fixture
def brought(tmp_path: Path, env: TrainerEnv) -> TrainerEnv:
    """A second log over the same broker, whose records bring what the first remembers."""
    (tmp_path / "brought").mkdir()
    made = TrainerEnv(tmp_path / "brought", env.broker)
    made.configure(FEATURES, BROUGHT, {"source": {"bootstrap_servers": env.broker.address}})
    return made


@pytest.mark.parametrize(
    "net",
    [
        {"name": "dlrm"},
        {"name": "din", "options": SEQUENCE},
        {"name": "hstu", "wide": False, "options": {**SEQUENCE, "time_gaps": "clicked.gap"}},
    ],
)
def test_model_and_predictions_are_those_of_records_that_bring_everything(
    env: TrainerEnv, brought: TrainerEnv, net: Section
) -> None:
    rows, common = clicks(500), {"model": net, "train": {"batch_size": 32}}
    env.configure(FEATURES, REMEMBERED, common)
    brought.configure(common)
    memories = env.config.schema.memories
    assert brought.config.schema.features == env.config.schema.features
    view = learn(env, rows, "bare", cuts=[210])
    expected = learn(brought, with_all(rows, memories), "whole", cuts=[210])
    check_same(view, expected)
    asked = later(rows, 60)
    whole = with_all([*rows, *asked], memories)[len(rows) :]
    assert any(row["clicked.item_id"] for row in whole)
    bare = [{name: row[name] for name in ("user_id", "item_id", "shop_id", "ts")} for row in asked]
    times = [row["ts"] for row in asked]
    at = [n for n, ts in enumerate(times) if ts == max(times, key=times.count)]  # one request, which no record follows
    whole = with_all([*rows, *(asked[n] for n in at)], memories)[len(rows) :]
    with HotModel(env.config.log.path) as model, HotModel(brought.config.log.path) as other:
        assert model.predict([bare[n] for n in at]) == other.predict(whole)
    world = World(SimpleNamespace(path=env.config.log.path))
    try:
        client = world.serve()
        world.served(client, view.version)
        context = {"user_id": 3, "ts": asked[-1]["ts"]}
        candidates = [{"item_id": item, "shop_id": item % 3} for item in range(12)]
        answer = client.post("/v1/predict", json={"context": context, "candidates": candidates}).json()
        with HotModel(env.config.log.path) as model:
            expected_N = probabilities(model.predict([{**context, **own} for own in candidates]))
        np.testing.assert_array_equal(probabilities(answer["predictions"]), expected_N)
        refused = client.post("/v1/predict", json={"instances": [{"user_id": 3, "ts": "yesterday"}]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_timestamp")
        assert "instance 0: ts: 'yesterday'" in refused.json()["error"]["message"]
    finally:
        world.close()


def probabilities(answer: Sequence[Mapping[str, float]]) -> Any:
    return np.array([one["click"] for one in answer], np.float32)


def errors(log: LearnedLog) -> list[Any]:
    """What is wrong with the log; the strings of its ids are made up."""
    found = verify(LogDirectory(log.config.log.path), deep=True).errors
    return [error for error in found if "does not hash to its id" not in error.what]


def remembered(view: View) -> dict[tuple[str, int], bytes]:
    """Return the rows of memories by name and id."""
    found = {}
    for memory in view.schema.memories:
        ids = np.arange(12)
        rows, status = view.lookup(np.array([view.schema.memory_number(memory)], np.uint16), ids)
        found |= {(memory.name, n): rows[n].tobytes() for n in ids.tolist() if status[n] == KNOWN}
    return found


def check_rollback(log: LearnedLog, rows_of: Callable[[View], Any]) -> None:
    """AssertionError unless a base and a rollback have the rows of their time, and learning goes on from them."""
    first, *_, last = log.learn(range(12), every=4)
    then, now = rows_of(log.view_at(first)), rows_of(log.view_at(last))
    assert then != now
    log.compact()
    assert rows_of(log.view()) == now
    log.roll_back(first)
    log.restart()
    assert rows_of(log.view()) == then
    log.learn(range(4, 12), every=4)
    assert rows_of(log.view()) == now
    assert errors(log) == []


def test_what_is_remembered_does_not_depend_on_batches(tmp_path: Path, env: TrainerEnv) -> None:
    rows, found = clicks(300), []
    for size in (1, 7, 256):
        (tmp_path / f"{size}").mkdir()
        one = TrainerEnv(tmp_path / f"{size}", env.broker)
        common = {"train": {"batch_size": size}, "source": {"bootstrap_servers": env.broker.address}}
        one.configure(FEATURES, REMEMBERED, common)
        found.append(remembered(learn(one, rows, f"by-{size}")))
    assert found[0] == found[1] == found[2]
    assert {name for name, _ in found[0]} == {"clicked", "item_id.tags", "item_id.price"}


def test_restarts_and_kills_remember_what_an_unbroken_run_does(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path / "whole", RANDOM)) as whole:
        whole.learn(range(30), every=3)
        expected = remembered(whole.view())
    with LearnedLog(config_in(tmp_path / "restarted", RANDOM)) as log:
        log.learn_interrupted()
        assert remembered(log.view()) == expected
    with LearnedLog(config_in(tmp_path / "killed", RANDOM)) as log:
        for start, stop in [(0, 11), (9, 20), (18, 30)]:
            log.learn(range(start, stop), every=3)
            log.log.sync()
            if stop < 30:
                log.kill()
                log.open()
        assert remembered(log.view()) == expected


def test_rows_that_memory_evicts_come_back_from_the_disk(tmp_path: Path) -> None:
    tight = {"memory": {"bytes": "1MiB"}, "sequences": {"clicked": {"last": 600}}}
    found = []
    for name, changes in {"roomy": {"sequences": tight["sequences"]}, "tight": tight}.items():
        with LearnedLog(config_in(tmp_path / name, RANDOM, changes)) as log:
            log.learn(range(24), every=4)
            log.checkpoint()
            found.append(remembered(log.view()))
            num_spilled = log.state.learner.memory.tables["clicked"].counters()["spilled"]
            assert (num_spilled > 0) == (name == "tight")
    assert found[0] == found[1]


def test_a_rollback_and_a_base_have_what_was_remembered_then(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path, RANDOM)) as log:
        check_rollback(log, remembered)


def test_other_settings_begin_one_memory_anew_and_keep_the_others(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path, RANDOM)) as log:
        log.learn(range(4))
        before = remembered(log.view())
    with LearnedLog(config_in(tmp_path, RANDOM, {"sequences": {"clicked": {"last": 6}}})) as log:
        base = log.directory.open_base()
        expected = {"[memory], [sequences] or [remember]", "[features.*] max_length"}
        assert set(base.manifest.meta.change["changed"]) == expected
        assert "rows of memory:clicked" in base.manifest.meta.change["begun"]
        assert "rows of memory:clicked" in base.manifest.meta.change["dropped"]
        after = remembered(log.view())
        assert after == {key: row for key, row in before.items() if key[0] != "clicked"}
        log.learn(range(4, 8))
        assert {name for name, _ in remembered(log.view())} == {"clicked", "user_id.age"}


def test_forgetting_an_id_forgets_what_it_is_remembered_for(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path, RANDOM)) as log:
        log.learn(range(4))
        before = remembered(log.view())
        assert {("clicked", 3), ("user_id.age", 3)} <= before.keys()
        executor = CommandExecutor(log.config.log.path, log.log.epoch, log.state)
        submit_command(log.config.log.path, "forget", {"keys": [{"feature": "user_id", "id": 3}]})
        executor.execute()
        log.checkpoint()
        forgotten = {("clicked", 3), ("user_id.age", 3)}
        after = {key: row for key, row in before.items() if key not in forgotten}
        assert remembered(log.view()) == after
        log.compact()
        log.restart()
        assert remembered(log.view()) == after
        assert errors(log) == []


def test_lists_that_records_lack_are_counted_before_a_step(tmp_path: Path) -> None:
    remember = {"sequences": None, "remember": {"item_id": ["genres"]}, "features": {"genres": {"max_length": 7}}}
    with LearnedLog(config_in(tmp_path, RANDOM, remember)) as log:
        batch = log.batch(0)
        longest = log.state.learner.memory.longest(batch)
        assert len(longest.features.lists[0].ids_M) == 7 * len(batch)
        read = log.state.learner.memory.recall(batch, has_samples=True)
        assert log.state.learner.keys.num_keys(read) <= log.state.learner.keys.num_keys(longest)


def test_the_time_of_an_instance_is_found_where_records_have_it(tmp_path: Path) -> None:
    schema = config_in(tmp_path, RANDOM, {"schema": {"timestamp": "request.ts"}}).schema
    instances = [{"request": {"ts": START_MS}}, {"request.ts": str(START_MS + 1)}, {"request": None}, {}]
    assert times_of(schema, instances, 5).tolist() == [START_MS, START_MS + 1, 5, 5]
    with pytest.raises(EncodeError, match="before 1980: give milliseconds") as raised:
        times_of(schema, [{}, {"request": {"ts": START_MS // 1000}}], 5)
    assert raised.value.index == 1


def test_files_have_no_times_of_records(tmp_path: Path) -> None:
    config = config_in(tmp_path, RANDOM, {"memory": {"known": "record"}})
    with pytest.raises(UserError, match="which files lack"):
        evaluate_files([], config.path)
