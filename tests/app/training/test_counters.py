"""Counters and rates: trainers, servers, HotModel and `evaluate` read what an oracle brings, bit by bit."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from springtide.app.config.load import Config
from springtide.app.training.commands import CommandExecutor
from springtide.app.version_log.commands.queue import submit_command
from springtide_client.counters import Counter, natural_log
from springtide_client.encode import encode_instances
from springtide_client.hot_model import HotModel
from springtide_client.model.view import KNOWN, View
from springtide_client.recall import times_of
from tests.app.serving.conftest import World
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.app.training.test_memory import check_same, clicks, errors, later, learn, probabilities
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
            for key in {tuple(row[name] for name in counter.key), ()}:
                events.setdefault(key, []).append(event)
        for row in made:
            key = tuple(row[name] for name in counter.key)
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
    whole = with_counters([*rows, *(asked[n] for n in at)], schema.counters)[len(rows) :]
    read = view.recalled(encode_instances(schema, request), times_of(schema, request, 0)).dense_NF
    expected_NF = np.array([[row.get(name, math.nan) for name in NAMES] for row in whole], np.float32)
    np.testing.assert_array_equal(read, expected_NF)
    assert np.isfinite(read).mean() > 0.8
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


def counted(view: View) -> dict[tuple[str, int], bytes]:
    """Return the rows of counters by name and id, those of pairs by the ids of random clicks."""
    found = {}
    for counter in view.schema.counters:
        ids = np.arange(40)
        rows, status = view.lookup(np.array([view.schema.memory_number(counter)], np.uint16), ids)
        found |= {(counter.name, n): rows[n].tobytes() for n in ids.tolist() if status[n] == KNOWN}
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
    assert {name for name, _ in found[0]} == {"item"}


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
