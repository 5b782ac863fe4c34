"""The delay of memory is compared with how late records come."""

import json
from pathlib import Path

import pytest

from springtide.app.tools.diagnosis import check_broker
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from tests.app.tools.test_diagnosis import CLICKS_SCHEMA, loaded
from tests.support.config import Section
from tests.support.kafka import create_topic, produce
from tests.support.waiting import DEADLINE_SECONDS

START_MS = 1_700_000_000_000
SEQUENCE: Section = {"sequences": {"seen": {"key": "user_id", "keep": ["user_id"], "last": 3}}}


@pytest.mark.parametrize(
    ("memory", "state", "said"),
    [
        ({"delay_seconds": 30, "tick_seconds": 5}, "ok", "99 % within 20.0 s; [memory] delay_seconds is 30"),
        ({"delay_seconds": 19, "tick_seconds": 5}, "note", "set it to 20 or more"),
        ({"delay_seconds": 0}, "problem", "what no server knew yet; set it to 20 or more, and tick_seconds to 1.693"),
        ({"delay_seconds": 1, "tick_seconds": 5, "known": "record"}, "problem", "is gone; set it to 20 or more"),
    ],
)
def test_a_delay_that_is_too_short_is_found(tmp_path: Path, memory: Section, state: str, said: str) -> None:
    layers = [{"source": {"topic": "clicks"}, "log": {"path": str(tmp_path / "log")}}, {"memory": memory}, SEQUENCE]
    config = loaded(tmp_path, CLICKS_SCHEMA, *layers)
    with EmbeddedBroker(tmp_path / "log") as broker:
        create_topic(broker.address, "clicks", num_partitions=2)

        def found() -> list[str]:
            return [f"{line.state} {line.text}" for line in check_broker(config) if line.text.startswith("memory")]

        assert found() == ["note memory: too few records to say how long after their event time they come"]
        with Producer(KafkaConfig(bootstrap_servers=broker.address)) as producer:
            for n in range(400):  # 10 s late, every tenth one 20 s
                value = json.dumps({"user_id": n, "click": n % 2, "ts": START_MS + n}).encode()
                late_ms = 20_000 if n % 10 == 0 else 10_000
                producer.send("clicks", value, partition=n % 2, record_ms=START_MS + n + late_ms)
            producer.flush(DEADLINE_SECONDS)
        produce(broker.address, "clicks", [b"{"])
        (line,) = found()
        assert line.startswith(f"{state} memory: records come 10.0 s after their event time, 99 % within 20.0 s")
        assert said in line


def test_where_nothing_is_remembered_nothing_is_said(tmp_path: Path) -> None:
    config = loaded(tmp_path, CLICKS_SCHEMA, {"source": {"topic": "clicks"}, "log": {"path": str(tmp_path / "log")}})
    with EmbeddedBroker(tmp_path / "log") as broker:
        create_topic(broker.address, "clicks")
        assert not [line for line in check_broker(config) if line.text.startswith("memory: records")]
