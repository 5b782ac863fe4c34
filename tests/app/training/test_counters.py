"""Counters and rates: trainers, servers, HotModel and `evaluate` read what an oracle brings, bit by bit."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from springtide.app.config.load import load_config
from springtide.app.tools.evaluate.evaluation import Evaluation
from springtide.app.tools.evaluate.file_source import FileSource
from springtide.app.training.commands import CommandExecutor
from springtide.app.version_log.commands.offline import execute_pending
from springtide.app.version_log.commands.queue import submit_command
from springtide.stream.columns import Batch
from springtide.stream.history.input_file import InputFile
from springtide_client.counters import ALL_ID, Counter, natural_log, pair_ids
from springtide_client.encode import encode_instances
from springtide_client.hot_model import HotModel
from springtide_client.model.view import KNOWN, View
from springtide_client.recall import times_of
from tests.app.serving.conftest import World
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.app.training.test_memory import check_rollback, check_same, clicks, errors, later, learn, probabilities
from tests.app.training.trainer_env import TrainerEnv
from tests.support import counter_oracle
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog

FEATURES: Section = {"schema": {"categorical": ["user_id", "item_id", "shop_id"], "dense": []}}
RATES = {"ctr": ["click", "shown"]}
ITEM: Section = {
    "key": "item_id",
    "count": ["shown", "click"],
    "half_lives": ["5s", "2m"],
    "rates": RATES,
    "prior": 2.0,
}
COUNTED: Section = {
    "counters": {
        "item": ITEM,
        "user_shop": {
            "key": ["user_id", "shop_id"],
            "count": ["click", "shown"],
            "half_lives": ["1m"],
            "rates": RATES,
            "features": ["age", "shown.1m", "ctr.1m"],
        },
        "all": {"key": [], "count": ["shown"], "half_lives": ["30s"]},
    }
}
# the same features, brought by records
NAMES = (
    *("item.shown.5s", "item.shown.2m", "item.ctr.5s", "item.ctr.2m", "item.age"),
    *("user_shop.age", "user_shop.shown.1m", "user_shop.ctr.1m", "all.shown.30s", "all.age"),
)
BROUGHT: Section = {"schema": {"dense": list(NAMES)}}
MANY_TICKS: Section = {"memory": {"tick_seconds": 0.001, "lateness_seconds": 0.01}}
# of random clicks, which come one a millisecond: 32 ms a batch
RANDOM: Section = {
    **RANDOM_CLICKS,
    "memory": {"tick_seconds": 0.005, "lateness_seconds": 0.0},
    "counters": {
        "user": {"key": "user_id", "count": ["shown", "click"], "half_lives": ["1s", "1m"], "rates": RATES},
        "pair": {"key": ["user_id", "item_id"], "count": ["shown"], "half_lives": ["1s"]},
    },
}


def amount(event: str, row: Mapping[str, Any]) -> int:
    return 256 if event == "shown" else round(256 * row[event])


def with_counters(rows: Sequence[Mapping[str, Any]], counters: Sequence[Counter]) -> list[dict[str, Any]]:
    """Return rows that bring the counters' features themselves, made of all rows."""
    made = [dict(row) for row in rows]
    for counter in counters:
        events: dict[Any, list[counter_oracle.Event]] = {}
        for row in rows:
            event = row["ts"] + counter.delay_ms, tuple(amount(name, row) for name in counter.count)
            for key in {tuple(row.get(name) for name in counter.key), ()}:
                events.setdefault(key, []).append(event)
        for row in made:
            key = tuple(row.get(name) for name in counter.key)
            if None in key:
                continue
            own = counter_oracle.counts(events[key], row["ts"], counter)
            every = counter_oracle.counts(events[()], row["ts"], counter)
            for feature, number in zip(counter.features, counter.numbers, strict=True):
                value = number_of(counter, number, own, every)
                if value is not None:
                    row[feature] = value
    return made


def number_of(counter: Counter, number: str, own: Any, every: Any) -> float | None:
    """Return what a sample reads; rates by the project's logarithm, whose last bit may differ from the library's."""
    if number == "age":
        return None if own[0] < 0 else own[0] * counter.tick_ms / 1000
    name, _, text = number.partition(".")
    h = counter.half_lives.index(text)
    if name in counter.count:
        return own[1][counter.count.index(name)][h]
    num, den = (counter.count.index(event) for event in counter.rates[name])
    n, d, n_all, d_all = own[1][num][h], own[1][den][h], every[1][num][h], every[1][den][h]
    p = (n_all + 1) / (d_all + 2)
    exact = float(np.float32(natural_log(np.array([(n + counter.prior * p) / (d + counter.prior) / p]))[0]))
    expected = counter_oracle.rate(n, d, n_all, d_all, counter.prior)
    assert exact == expected or math.isclose(exact, expected, rel_tol=2e-7, abs_tol=1e-15)
    return exact


@pytest.fixture
def brought(tmp_path: Path, env: TrainerEnv) -> TrainerEnv:
    """A second log over the same broker, whose records bring what the first counts."""
    (tmp_path / "brought").mkdir()
    made = TrainerEnv(tmp_path / "brought", env.broker)
    made.configure(FEATURES, BROUGHT, {"source": {"bootstrap_servers": env.broker.address}})
    return made


@pytest.mark.parametrize("net", [{"name": "dlrm"}, {"name": "wide_and_deep", "wide": False}])
def test_model_and_predictions_are_those_of_records_that_bring_everything(
    env: TrainerEnv, brought: TrainerEnv, net: Section
) -> None:
    rows, common = clicks(400), {"model": net, "train": {"batch_size": 32}}
    for n, name in ((n, ("item_id", "shop_id", "user_id")[n % 3]) for n in range(0, len(rows), 5)):
        del rows[n][name]
    env.configure(FEATURES, COUNTED, common)
    brought.configure(common)
    schema = env.config.schema
    assert schema.dense == NAMES == brought.config.schema.dense
    view = learn(env, rows, "bare", cuts=[210])
    expected = learn(brought, with_counters(rows, schema.counters), "whole", cuts=[210])
    check_same(view, expected)
    asked = later(rows, 60)
    times = [row["ts"] for row in asked]
    at = [n for n, ts in enumerate(times) if ts == max(times, key=times.count)]  # one request, which no record follows
    request = [{name: asked[n][name] for name in ("user_id", "item_id", "shop_id", "ts")} for n in at]
    request.append({"user_id": 3, "ts": times[at[0]]})
    whole = with_counters([*rows, *({**one, "click": 0} for one in request)], schema.counters)[len(rows) :]
    read = view.recalled(encode_instances(schema, request), times_of(schema, request, 0)).dense_NF
    expected_NF = np.array([[row.get(name, math.nan) for name in NAMES] for row in whole], np.float32)
    np.testing.assert_array_equal(read, expected_NF)
    assert np.isfinite(read[:-1]).mean() > 0.8
    with HotModel(env.config.log.path) as model, HotModel(brought.config.log.path) as other:
        assert model.predict(request) == other.predict(whole)
        hot = probabilities(model.predict(request))
    world = World(SimpleNamespace(path=env.config.log.path))
    try:
        client = world.serve()
        world.served(client, view.version)
        answer = client.post("/v1/predict", json={"instances": request})
        np.testing.assert_array_equal(probabilities(answer.json()["predictions"]), hot)
        assert answer.headers["X-Springtide-Memory"] in ("complete", "behind")
    finally:
        world.close()


def row_ids(counter: Counter) -> np.ndarray:
    """Return the ids of all rows that a counter may have here."""
    grid = np.array([[user, other] for user in range(40) for other in range(2000 if counter.name == "pair" else 3)])
    own = np.arange(40) if len(counter.key) == 1 else pair_ids(grid[:, 0], grid[:, 1])
    return np.unique(np.append(own if counter.key else own[:0], ALL_ID))


def counted(view: View) -> dict[tuple[str, int], bytes]:
    """Return the rows of counters by name and id."""
    found = {}
    for counter in view.schema.counters:
        ids = row_ids(counter)
        rows, status = view.lookup(np.array([view.schema.memory_number(counter)], np.uint16), ids)
        found |= {(counter.name, n): rows[k].tobytes() for k, n in enumerate(ids.tolist()) if status[k] == KNOWN}
    return found


def test_counts_do_not_depend_on_batches(tmp_path: Path, env: TrainerEnv) -> None:
    rows, found = clicks(300), []
    for size in (1, 16, 4096):
        (tmp_path / f"{size}").mkdir()
        one = TrainerEnv(tmp_path / f"{size}", env.broker)
        common = {"train": {"batch_size": size}, "source": {"bootstrap_servers": env.broker.address}}
        one.configure(FEATURES, COUNTED, common)
        found.append(counted(learn(one, rows, f"by-{size}")))
    assert found[0] == found[1] == found[2]
    assert {name for name, _ in found[0]} == {"item", "user_shop", "all"}


def test_restarts_and_kills_count_to_the_unit_what_the_topic_has(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path / "killed", RANDOM)) as log:
        for start, stop in [(0, 11), (9, 20), (18, 30)]:
            log.learn(range(start, stop), every=3)
            log.log.sync()
            if stop < 30:
                log.kill()
                log.open()
        killed = counted(log.view())
        view, (user, pair) = log.view(), log.config.schema.counters
        batches = [log.batch(number) for number in range(30)]
    with LearnedLog(config_in(tmp_path / "restarted", RANDOM)) as log:
        log.learn_interrupted()
        assert counted(log.view()) == killed
    samples = [
        (int(ms), ids.tolist(), int(256 * label))
        for batch in batches
        for ms, ids, (label,) in zip(batch.event_ms_N, batch.features.categorical_NC, batch.labels_NL, strict=True)
    ]
    at_ms = samples[-1][0] + 60
    for user_id in range(40):
        events = [(ms, (256, click)) for ms, ids, click in samples if ids[0] == user_id]
        instances = [{"user_id": user_id, "item_id": 1}]
        found = view.recalled(encode_instances(view.schema, instances), np.array([at_ms])).dense_NF[0]
        every = counter_oracle.counts([(ms, (256, click)) for ms, _, click in samples], at_ms, user)
        own = counter_oracle.counts(events, at_ms, user)
        expected = [number_of(user, number, own, every) for number in user.numbers]
        np.testing.assert_array_equal(found[2 : 2 + len(expected)], np.array(expected, np.float32))
    assert pair.features == ("pair.shown.1s", "pair.age")


def test_rows_that_memory_evicts_come_back_from_the_disk(tmp_path: Path) -> None:
    found = []
    for name, changes in {"roomy": {}, "tight": {"memory": {"bytes": "1MiB"}}}.items():
        with LearnedLog(config_in(tmp_path / name, RANDOM, MANY_TICKS, changes)) as log:
            log.learn(range(200), every=4)
            log.checkpoint()
            found.append(counted(log.view()))
            num_spilled = log.state.learner.memory.tables["pair"].counters()["spilled"]
            assert (num_spilled > 0) == (name == "tight")
    assert found[0] == found[1]


def test_a_rollback_and_a_base_have_the_counts_of_then(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path, RANDOM)) as log:
        check_rollback(log, counted)


def test_other_half_lives_begin_one_counter_anew_and_other_rates_none(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path, RANDOM)) as log:
        log.learn(range(4))
        before = counted(log.view())
    prior = {"counters": {"user": {"prior": 3.0, "features": ["ctr.1m", "age"]}}}
    with LearnedLog(config_in(tmp_path, RANDOM, prior)) as log:
        change = log.directory.open_base().manifest.meta.change
        assert {"[memory] or [counters]", "[schema] dense"} <= set(change["changed"])
        assert any(line.startswith("rows of memory:user,") for line in change["kept"])
        assert counted(log.view()) == before
    with LearnedLog(config_in(tmp_path, RANDOM, {"counters": {"user": {"half_lives": ["2s", "1m"]}}})) as log:
        change = log.directory.open_base().manifest.meta.change
        assert "rows of memory:user" in change["begun"]
        assert "rows of memory:user" in change["dropped"]
        assert counted(log.view()) == {key: row for key, row in before.items() if key[0] != "user"}
        log.learn(range(4, 8))
        assert {name for name, _ in counted(log.view())} == {"user", "pair"}


def test_forgetting_an_id_leaves_no_row_of_it(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path, RANDOM)) as log:
        log.learn(range(4))
        before = counted(log.view())
        pairs = set(pair_ids(np.full(2000, 3), np.arange(2000)).tolist())
        gone = {("user", 3), *(("pair", n) for n in pairs)}
        assert len(gone & before.keys()) > 2
        executor = CommandExecutor(log.config.log.path, log.log.epoch, log.state)
        submit_command(log.config.log.path, "forget", {"keys": [{"feature": "user_id", "id": 3}]})
        executor.execute()
        log.checkpoint()
        after = {key: row for key, row in before.items() if key not in gone}
        assert counted(log.view()) == after
        log.roll_back(log.log.last_number - 1)  # what is forgotten stays forgotten
        log.restart()
        assert counted(log.view()) == after
        log.compact()
        log.restart()
        assert counted(log.view()) == after
        assert errors(log) == []


@pytest.mark.parametrize("feature", ["user_id", "item_id"])
def test_an_id_is_forgotten_wherever_its_rows_are(tmp_path: Path, feature: str) -> None:
    """In memory, on the disk, in the base; and without a trainer."""
    with LearnedLog(config_in(tmp_path, RANDOM, MANY_TICKS, {"memory": {"bytes": "1MiB"}})) as log:
        log.learn(range(100), every=4)
        log.compact()
        log.restart()
        log.learn(range(100, 200), every=4)
        before = counted(log.view())
        assert log.state.learner.memory.tables["pair"].counters()["spilled"] > 0
        executor = CommandExecutor(log.config.log.path, log.log.epoch, log.state)
        submit_command(log.config.log.path, "forget", {"keys": [{"feature": feature, "id": 7}]})
        executor.execute()
        log.checkpoint()
        after = without(before, feature, 7)
        assert counted(log.view()) == after != before
        before = after
    submit_command(log.config.log.path, "forget", {"keys": [{"feature": feature, "id": 8}]})
    assert execute_pending(log.config.log, window_samples=100) == 1
    with LearnedLog(log.config) as log:
        after = without(before, feature, 8)
        assert counted(log.view()) == after != before
        assert errors(log) == []


def without(rows: Mapping[tuple[str, int], bytes], feature: str, row_id: int) -> dict[tuple[str, int], bytes]:
    """Return the rows that are left once an id is forgotten."""
    own, others = np.full(2000, row_id), np.arange(2000)
    pairs = pair_ids(own, others) if feature == "user_id" else pair_ids(others, own)
    gone = {("pair", n) for n in pairs.tolist()} | ({("user", row_id)} if feature == "user_id" else set())
    return {key: row for key, row in rows.items() if key not in gone}


def test_a_batch_without_samples_counts_nothing(tmp_path: Path) -> None:
    with LearnedLog(config_in(tmp_path, RANDOM)) as log:
        log.learn(range(2))
        before = counted(log.view())
        memory = log.state.learner.memory
        features = memory.recall(Batch.empty(log.config.schema.recorded), has_samples=False).features
        assert features.dense_NF.shape == (0, len(log.config.schema.dense))
        log.checkpoint()
        assert counted(log.view()) == before


def test_evaluate_counts_as_the_live_run_does(tmp_path: Path, env: TrainerEnv) -> None:
    rows = clicks(300)
    env.configure(FEATURES, COUNTED, {"train": {"batch_size": 32}})
    live = counted(learn(env, rows, "live"))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load_config(env.config.path, {"log": {"path": str(tmp_path / "none")}})
    source = FileSource(config.source, config.schema.recorded, [InputFile(path)], limit=None, by=None)
    evaluation = Evaluation(config, source)
    try:
        evaluation.run()
        found = {}
        for counter in config.schema.counters:
            ids = row_ids(counter)
            numbers = np.full(len(ids), config.schema.memory_number(counter), np.uint16)
            table = evaluation.state.learner.memory.tables[counter.name]
            rows_ND, status_N = table.find(numbers, ids)
            found |= {(counter.name, n): rows_ND[k].tobytes() for k, n in enumerate(ids.tolist()) if not status_N[k]}
        assert found == live
    finally:
        evaluation.close()
