"""How to reach a Kafka broker, and how much one fetch may return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.stream.compression import MAX_BATCH_BYTES
from springtide.stream.kafka.oauth import OAuthTokens, take_oauth_options
from springtide.stream.kafka.secrets import hide_secrets, read_secrets

CONNECT_SECONDS = 3.0
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """How to reach a broker and how to fetch from it. Raises ValueError for a setting that cannot be used."""

    bootstrap_servers: str  # host:port, several separated by commas
    fetch_wait_ms: int = 5  # the shortest time that the broker may hold a fetch; see AdaptiveFetchWait
    max_partition_fetch_bytes: int = 2 << 20
    max_fetch_bytes: int = 16 << 20
    max_batch_bytes: int = MAX_BATCH_BYTES  # of a compressed batch, once it is decompressed
    # of every client, as they are configured: security_protocol, sasl_mechanism, ...; not shown, as secrets are in them
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.fetch_wait_ms < 0:
            raise ValueError(f"fetch_wait_ms must not be negative, not {self.fetch_wait_ms}")
        parse_addresses(self.bootstrap_servers)
        _, tokens = take_oauth_options(self.options)
        _check_security(self.options, has_tokens=tokens is not None)

    @property
    def security_protocol(self) -> str:
        """One of PROTOCOLS."""
        return str(self.options.get("security_protocol", "PLAINTEXT"))

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """True if clients show credentials."""
        return self.security_protocol.startswith("SASL_")

    @property
    def oauth_tokens(self) -> OAuthTokens | None:
        """The tokens for OAUTHBEARER, one object for all clients with these options; None without."""
        return take_oauth_options(self.options)[1]

    def client_options(self) -> dict[str, Any]:
        """The keyword arguments that kafka-python's consumer, producer and admin client share, with their secrets.

        Raises AccessError where a secret is missing.
        """
        options = {
            "bootstrap_servers": [f"{host}:{port}" for host, port in parse_addresses(self.bootstrap_servers)],
            "client_id": "springtide",
            "bootstrap_timeout_ms": int(CONNECT_SECONDS * 1000),
            "reconnect_backoff_max_ms": 2000,
            **read_secrets(take_oauth_options(self.options)[0]),
        }
        if self.oauth_tokens is not None:
            options["sasl_oauth_token_provider"] = self.oauth_tokens
        if options.get("ssl_certfile"):
            options.setdefault("ssl_password", "")  # without one OpenSSL asks for it at the terminal
        return options

    def hide_secrets(self, text: str) -> str:
        """The text without the secrets of the options."""
        return hide_secrets(text, self.options)


def _check_security(options: Mapping[str, Any], *, has_tokens: bool) -> None:
    """Raise ValueError for a protocol or mechanism that does not exist, or that lacks what it needs."""
    protocol, mechanism = options.get("security_protocol", "PLAINTEXT"), options.get("sasl_mechanism")
    if protocol not in PROTOCOLS:
        raise ValueError(f"kafka: security_protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    if mechanism is not None and mechanism not in MECHANISMS:
        raise ValueError(f"kafka: sasl_mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    if not protocol.startswith("SASL_"):
        if mechanism is not None:
            secure = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
            raise ValueError(f'kafka: sasl_mechanism needs security_protocol = "{secure}"')
        return
    if mechanism is None:
        raise ValueError(f"kafka: security_protocol = {protocol!r} needs sasl_mechanism: {', '.join(MECHANISMS[:4])}")
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM"):
        needed = [key for key in ("sasl_plain_username", "sasl_plain_password") if key not in options]
        if needed:
            raise ValueError(f"kafka: sasl_mechanism = {mechanism!r} needs {' and '.join(needed)}")
    if mechanism == "OAUTHBEARER" and not has_tokens:
        raise ValueError(
            "kafka: sasl_mechanism = 'OAUTHBEARER' needs sasl_oauth_token_url, sasl_oauth_client_id and "
            "sasl_oauth_client_secret, or sasl_oauth_token"
        )


def parse_addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """Parse "host:port,host:port" into [(host, port)]. Raises ValueError that names the malformed part."""
    addresses = []
    for part in bootstrap_servers.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"bootstrap_servers: {part.strip()!r} is not host:port, such as localhost:9092")
        addresses.append((host.strip("[]"), int(port)))
    return addresses
