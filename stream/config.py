"""What to read, from where, and how much of it at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream.broker.embedded import require_broker
from stream.kafka.config import KafkaConfig

ON_RESET = ("fail", "earliest", "latest")


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """What to read, from where. Without bootstrap_servers: from the embedded broker of the log."""

    topic: str
    bootstrap_servers: str | None = None
    log_path: Path | None = None
    format: str = "json"
    fetch_wait_ms: int = 5
    on_reset: str = "fail"
    max_message_bytes: int = 1 << 20
    max_future_seconds: float = 60.0
    queue_bytes: int = 64 << 20
    group: str | None = None  # positions are reported to this consumer group
    kafka: Mapping[str, Any] = field(default_factory=dict)  # options of kafka-python's clients, for TLS and SASL

    def __post_init__(self) -> None:
        if not self.topic:
            raise ValueError('[source] needs topic = "..."')
        if self.on_reset not in ON_RESET:
            raise ValueError(f"[source] on_reset must be one of {', '.join(ON_RESET)}, not {self.on_reset!r}")
        if self.format != "json":
            raise ValueError(f"[source] format must be json, not {self.format!r}")
        for name in ("max_message_bytes", "queue_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"[source] {name} must be at least 1, not {getattr(self, name)}")
        if self.bootstrap_servers is None:
            if self.log_path is None:
                raise ValueError("[source] needs bootstrap_servers, or a log whose embedded broker is read")
        else:
            self.kafka_config()

    @property
    def uses_embedded_broker(self) -> bool:
        """Whether the broker is the log's own."""
        return self.bootstrap_servers is None

    def kafka_config(self) -> KafkaConfig:
        """How to reach the broker as of now; BrokerUnavailableError where the embedded one does not run."""
        servers = self.bootstrap_servers
        if servers is None:
            assert self.log_path is not None
            servers = require_broker(self.log_path).address
        return KafkaConfig(bootstrap_servers=servers, fetch_wait_ms=self.fetch_wait_ms, options=self.kafka)
