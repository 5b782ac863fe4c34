"""How to reach a Kafka broker, and how much one fetch may return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.stream.compression import MAX_BATCH_BYTES

CONNECT_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """How to reach a broker and how to fetch from it. Raises ValueError for a setting that cannot be used."""

    bootstrap_servers: str  # host:port, several separated by commas
    fetch_wait_ms: int = 5  # the shortest time that the broker may hold a fetch; see AdaptiveFetchWait
    max_partition_fetch_bytes: int = 2 << 20
    max_fetch_bytes: int = 16 << 20
    max_batch_bytes: int = MAX_BATCH_BYTES  # of a compressed batch, once it is decompressed
    options: Mapping[str, Any] = field(default_factory=dict)  # of every client: security_protocol, sasl_mechanism, ...

    def __post_init__(self) -> None:
        if self.fetch_wait_ms < 0:
            raise ValueError(f"fetch_wait_ms must not be negative, not {self.fetch_wait_ms}")
        parse_addresses(self.bootstrap_servers)

    def client_options(self) -> dict[str, Any]:
        """The keyword arguments that kafka-python's consumer, producer and admin client share."""
        return {
            "bootstrap_servers": [f"{host}:{port}" for host, port in parse_addresses(self.bootstrap_servers)],
            "client_id": "springtide",
            "bootstrap_timeout_ms": int(CONNECT_SECONDS * 1000),
            "reconnect_backoff_max_ms": 2000,
            **self.options,
        }


def parse_addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """Parse "host:port,host:port" into [(host, port)]. Raises ValueError that names the malformed part."""
    addresses = []
    for part in bootstrap_servers.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"bootstrap_servers: {part.strip()!r} is not host:port, such as localhost:9092")
        addresses.append((host.strip("[]"), int(port)))
    return addresses
