"""Served as trained: what an answer says that its instances read of memory is what the trainer reads for them."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from springtide.app.errors import UserError
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.trainer_status import TrainerStatus
from springtide.stream.kafka.producer import Producer
from springtide_client.hot_model import HotModel
from tests.app.serving.conftest import World
from tests.app.training.test_memory import FEATURES, REMEMBERED, clicks, later
from tests.app.training.trainer_env import TrainerEnv
from tests.support.config import Section
from tests.support.kafka import create_topic
from tests.support.waiting import DEADLINE_SECONDS

CHECK: Section = {
    "memory": {"check": "signals"},
    "source": {"topic": "clicks"},
    "counters": {"item": {"key": "item_id", "count": ["shown", "click"], "half_lives": ["1m", "1h"]}},
}


def learn_more(env: TrainerEnv, rows: Sequence[dict[str, Any]]) -> TrainerStatus:
    """Send the rows, and learn all that is sent."""
    create_topic(env.broker.address, "clicks")
    with Producer(env.kafka) as producer:
        for row in rows:
            producer.send("clicks", json.dumps(row).encode(), partition=0, record_ms=row["ts"])
        producer.flush(DEADLINE_SECONDS)
    return Trainer(env.config, until_end=True).run()


def test_samples_that_bring_the_signals_of_their_answers_are_compared(env: TrainerEnv) -> None:
    env.configure(FEATURES, REMEMBERED, CHECK)
    rows = clicks(300)
    first = learn_more(env, rows)
    assert (first.memory_check.equal, first.memory_check.unequal, first.memory_check.share) == (0, 0, None)
    asked = later(rows, 1)[0] | {"click": 0}
    instances = [asked | {"user_id": user, "item_id": item} for user in range(7) for item in (1, 5, 9)]
    world = World(SimpleNamespace(path=env.config.log.path))
    try:
        client = world.serve()
        world.served(client, env.view().version)
        raw = [{name: row[name] for name in ("user_id", "item_id", "shop_id", "ts")} for row in instances]
        answer = client.post("/v1/predict", json={"instances": raw, "signals": True})
        body = answer.json()
        assert answer.headers["X-Springtide-Memory"] == "complete"
        soon = client.post("/v1/predict", json={"instances": [raw[0] | {"ts": body["time"] + 3_600_000}]})
        assert soon.headers["X-Springtide-Memory"] == "behind"
        assert len(set(body["signals"])) > 10
        assert "signals" not in client.post("/v1/predict", json={"instances": raw}).json()
        ranked = client.post(
            "/v1/rank",
            json={"context": {"user_id": 0, "ts": asked["ts"]}, "candidates": raw[:3], "signals": True},
        ).json()
        assert {item["index"]: item["signals"] for item in ranked["items"]} == dict(enumerate(body["signals"][:3]))
        assert body["time"] <= ranked["time"]
    finally:
        world.close()
    with HotModel(env.config.log.path) as model:
        assert model.signals(raw) == body["signals"]
    brought = [row | {"signals": text} for row, text in zip(instances, body["signals"], strict=True)]
    swapped = [row | {"user_id": (row["user_id"] + 1) % 7} for row in brought[:3]]
    unknown = [row | {"item_id": 11} for row in brought[3:6]]
    check = learn_more(env, [*brought, *instances[:5], *swapped, *unknown]).memory_check
    assert (check.equal, check.unequal) == (len(brought), 6)
    assert check.share == pytest.approx(len(brought) / (len(brought) + 6))
    assert check.unequal_by_feature["clicked.item_id"] == 3
    counted = {name for counter in env.config.schema.counters for name in counter.features}
    assert check.unequal_by_feature.keys() <= {"clicked.item_id", "tags", "price", *counted}
    again = learn_more(env, brought[:1]).memory_check  # a trainer goes on from the counts of the version
    assert (again.equal, again.unequal) == (check.equal + 1, 6)


def test_signals_of_nothing_are_refused(env: TrainerEnv) -> None:
    env.configure(FEATURES, {"source": {"topic": "clicks"}})
    learn_more(env, clicks(20))
    world = World(SimpleNamespace(path=env.config.log.path))
    try:
        client = world.serve()
        world.served(client, env.view().version)
        refused = client.post("/v1/predict", json={"instances": [{"user_id": 1}], "signals": True})
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            422,
            "there are no signals: nothing is remembered",
        )
    finally:
        world.close()
    with HotModel(env.config.log.path) as model, pytest.raises(ValueError, match="nothing is remembered"):
        model.signals([{"user_id": 1}])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"memory": {"check": "signals"}}, "nothing is remembered to check"),
        (REMEMBERED | {"memory": {"check": "price"}}, "'price' has another role"),
        (REMEMBERED | CHECK | {"memory": {"check": "item.age"}}, "'item.age' has another role"),
        (REMEMBERED | {"memory": {"check": ""}}, "must name a field"),
        (REMEMBERED | {"memory": {"check": "rid"}, "schema": {"request": "rid"}}, r"'rid' is \[schema\] request"),
        (REMEMBERED | {"memory": {"check": "by"}, "scores": {"group": "by"}}, r"'by' is \[scores\] group"),
        (REMEMBERED | {"memory": {"check": "s"}, "schema": {"timestamp": None}}, r"check needs \[schema\] timestamp"),
    ],
)
def test_a_check_that_cannot_be(env: TrainerEnv, section: Section, message: str) -> None:
    with pytest.raises(UserError, match=message):
        env.configure(FEATURES, section)
