"""The `[source]` section: which topic to read, from where, and how much of it at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from springtide.stream.broker.embedded import require_broker
from springtide.stream.compression import MAX_BATCH_BYTES
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.kafka.config import KafkaConfig
from springtide_client.system.settings import INTERNAL, SIZE


class SourceConfig(DecodeConfig, frozen=True, kw_only=True):
    """Which topic is read, from which broker."""

    topic: Annotated[str, Meta(min_length=1, description="Topic to read, from all its partitions.")] = "clicks"
    bootstrap_servers: Annotated[
        str | None,
        Meta(description='`"host:port"`, several separated by commas. Default: the embedded broker of the log.'),
    ] = None
    log_path: Annotated[Path | None, Meta(extra=INTERNAL)] = None  # the log whose embedded broker is read
    fetch_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long the broker may hold a fetch back; raised, up to 500, while its responses do not "
            "keep up.",
        ),
    ] = 5
    on_reset: Annotated[
        Literal["fail", "earliest", "latest"],
        Meta(
            description="What to do when the topic was re-created or has lost records. The embedded broker's is read "
            "from its start."
        ),
    ] = "fail"
    queue_bytes: Annotated[
        int, Meta(ge=1, extra=SIZE, description="Decoded samples waiting to be learned; a full queue slows the stream.")
    ] = 64 << 20
    group: Annotated[
        str | None,
        Meta(description="Consumer group that durable positions are reported to. Default: `springtide-<name>`."),
    ] = None
    kafka: Annotated[
        Mapping[str, Any],
        Meta(
            description="Options of kafka-python's clients, such as `security_protocol`, for TLS and SASL. A secret is "
            '`"env:NAME"` or `"file:PATH"`; see [operations](operations.md#tls-sasl-and-secrets).'
        ),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bootstrap_servers is not None:
            self.kafka_config()  # checks the addresses
        elif self.log_path is None:
            raise ValueError("needs bootstrap_servers, or a log to find the embedded broker by")

    @property
    def uses_embedded_broker(self) -> bool:
        """True if the broker is the embedded one of the log."""
        return self.bootstrap_servers is None

    def kafka_config(self) -> KafkaConfig:
        """Return how to reach the broker now; BrokerUnavailableError if the embedded one does not run."""
        servers = self.bootstrap_servers
        if servers is None:
            assert self.log_path is not None
            servers = require_broker(self.log_path).address
        return KafkaConfig(
            bootstrap_servers=servers,
            fetch_wait_ms=self.fetch_wait_ms,
            # a batch of one message that is too long still has to become a dead letter
            max_batch_bytes=max(MAX_BATCH_BYTES, 4 * self.max_message_bytes),
            options=self.kafka,
        )
