"""Diagnoses the way to a topic for `springtide check`: address, connection, protocol, topic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from springtide.stream.errors import BrokerUnavailableError, StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.library import unreachable_reason


@dataclass(frozen=True)
class Problem:
    """What is wrong, and how to fix it: a line each."""

    what: str
    fix: str


def check_kafka(bootstrap_servers: str, topic: str, *, options: Mapping[str, Any] | None = None) -> list[Problem]:
    """The first problem on the way to the topic; an empty list if there is none."""
    try:
        config = KafkaConfig(bootstrap_servers=bootstrap_servers, options=options or {})
    except ValueError as error:
        return [Problem(str(error), 'write [source] bootstrap_servers = "host:port", several separated by commas')]
    if reason := unreachable_reason(bootstrap_servers):
        return [Problem(f"Kafka: {reason}", "start the broker, or correct [source] bootstrap_servers")]
    try:
        with Admin(config) as admin:
            found = admin.topic(topic)
    except BrokerUnavailableError:
        return [
            Problem(
                f"something listens on {bootstrap_servers}, but does not speak the Kafka protocol",
                "correct the port in [source] bootstrap_servers, or the security settings",
            )
        ]
    except StreamError as error:
        return [Problem(str(error), "look at the broker's log")]
    if found is None:
        return [
            Problem(
                f"there is no topic {topic!r} at {bootstrap_servers}",
                "create it, send something with `springtide replay`, or correct [source] topic",
            )
        ]
    return []
