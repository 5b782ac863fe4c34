"""A join's topics are checked: retention, keys in several partitions, room for what is held."""

import json
from pathlib import Path

import pytest

from springtide.app.tools.diagnosis import check_broker
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.kafka.admin import Admin
from springtide.stream.positions import Partition
from tests.app.tools.test_diagnosis import CLICKS_SCHEMA, loaded
from tests.support.config import Section
from tests.support.kafka import create_topic, produce


def test_keys_in_several_partitions_are_a_problem_where_the_join_counts_on_none(tmp_path: Path) -> None:
    join = {
        "source": {"topic": "impressions"},
        "join": {"key": ["request"], "partitioned_by_key": True},
        "labels": {"click": {"topic": "actions", "window_seconds": 60}},
    }
    config = loaded(tmp_path, CLICKS_SCHEMA, {"log": {"path": str(tmp_path / "log")}}, join)
    with EmbeddedBroker(tmp_path / "log") as broker:
        create_topic(broker.address, "impressions", num_partitions=2)
        impressions = [
            json.dumps({"request": f"r{n}", "user_id": n, "ts": 1_700_000_000_000}).encode() for n in range(5)
        ]
        produce(broker.address, "impressions", impressions[:3], partition=0)
        produce(broker.address, "impressions", [*impressions[3:], b"{"], partition=1)
        found = [line for line in check_broker(config) if "keys" in line.text]
        assert found == [("ok", "broker: none of 5 keys is in several partitions of 'impressions'")]
        produce(broker.address, "impressions", impressions[:1], partition=1)
        (found,) = [line for line in check_broker(config) if "keys" in line.text]
        assert (found.state, "1 of 5 keys are in several partitions" in found.text) == ("problem", True)


def test_the_impressions_that_are_held_must_have_room(tmp_path: Path) -> None:
    late = {"window_seconds": 60, "until_seconds": 172_800, "late": "importance_weighted"}
    layers = [
        {"source": {"topic": "impressions"}, "join": {"key": ["request"]}, "log": {"path": str(tmp_path / "log")}},
        {"labels": {"click": {"topic": "actions"} | late}},
    ]
    with EmbeddedBroker(tmp_path / "log") as broker:

        def found(*more: Section) -> list[str]:
            config = loaded(tmp_path, CLICKS_SCHEMA, *layers, *more)
            return [f"{line.state} {line.text}" for line in check_broker(config) if "held" in line.text]

        produce(broker.address, "actions", [b"{}"])
        produce(broker.address, "impressions", [b"{}"])
        assert found() == ["note broker: too few impressions to say how many are held"]
        rows = [{"request": n, "user_id": n, "ts": 1_700_000_000_000 + n} for n in range(1001)]  # 1,000 a second
        produce(broker.address, "impressions", [json.dumps(row).encode() for row in rows])
        (line,) = found()
        assert line.startswith("problem broker: impressions are held for 172740 s, at 1,001 a second some ")
        assert line.endswith('have room for 8.2 GiB: raise disk_bytes, or set until_seconds or late = "settle"')
        (line,) = found({"labels": {"click": {"until_seconds": 3600}}})
        assert line.startswith("ok broker: impressions are held for 3540 s")
        assert found({"labels": {"click": {"late": "settle"}}}) == []
        by_event = {"join": {"release": "event"}, "labels": {"click": {"late": "ignore", "window_seconds": 170_000}}}
        assert found(by_event)[0].endswith("raise disk_bytes, or set a shorter window_seconds")


def test_every_topic_that_is_joined_is_looked_for_and_must_keep_its_records_for_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = {
        "source": {"topic": "impressions"},
        "join": {"key": ["request"]},
        "labels": {"click": {"topic": "actions", "window_seconds": 60}},
    }
    config = loaded(tmp_path, CLICKS_SCHEMA, {"log": {"path": str(tmp_path / "log")}}, join)
    with EmbeddedBroker(tmp_path / "log") as broker:
        produce(broker.address, "impressions", [b"{}"])
        found = [f"{line.state} {line.text}" for line in check_broker(config)]
        assert found[0].endswith("topic 'impressions'")
        assert found[1].startswith("problem ")
        assert "'actions'" in found[1]
        produce(broker.address, "actions", [b"{}"])
        for retention_ms, states in ((-1, ["ok"] * 2), (75_000, ["ok"] * 2), (74_999, ["ok", "problem"] * 2)):
            monkeypatch.setattr(Admin, "topic_settings", lambda *_, ms=retention_ms: {"retention.ms": str(ms)})
            found = list(check_broker(config))
            assert [line.state for line in found] == states
        assert "keeps its records for 74.999 s, and a restart of the join reads the last 75 s again" in found[1].text
        settings = {"retention.ms": "-1", "cleanup.policy": "compact,delete"}
        monkeypatch.setattr(Admin, "topic_settings", lambda *_: settings)
        assert [line.state for line in check_broker(config)] == ["ok", "note"] * 2
        settings["cleanup.policy"] = "delete"
        produce(broker.address, "actions", [b"{}"] * 3)
        for first, states in ((0, ["ok"] * 2), (2, ["ok", "ok", "problem"]), (4, ["ok"] * 2)):
            begins = {Partition("impressions", 0): 0, Partition("actions", 0): first}
            monkeypatch.setattr(
                Admin, "beginning_offsets", lambda _, topic, b=begins: {p: b[p] for p in topic.partitions}
            )
            found = list(check_broker(config))
            assert [line.state for line in found] == states
            if first == 2:
                assert "'actions' has lost its records from before the last " in found[2].text
