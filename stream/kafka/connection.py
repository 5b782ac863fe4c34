"""Builds kafka-python's clients, which connect to the broker; says why where they cannot."""

import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from springtide.stream.kafka.config import CONNECT_SECONDS, KafkaConfig, parse_addresses
from springtide.stream.kafka.connection_check import connection_problem
from springtide.stream.kafka.library import kafka

PATIENT_CONNECT_SECONDS = 15.0  # for a broker that accepts connections, but is too busy to answer at once


def connect(client: Any, config: KafkaConfig, *, patient: bool = False, **options: Any) -> Any:
    """Build one of kafka-python's clients, which connects to the broker.

    Raises kafka-python's errors, or the StreamError that says what the broker objects to. It fails after
    CONNECT_SECONDS; if `patient`, a broker that accepts connections gets longer to answer.
    """
    options = config.client_options() | options
    try:
        return create_no_topics(make_client(client, options))
    except (kafka.errors.KafkaConnectionError, kafka.errors.KafkaTimeoutError, kafka.errors.NodeNotReadyError):
        if unreachable_reason(config.bootstrap_servers) is not None:
            raise
        if (problem := connection_problem(config)) is not None:
            raise problem from None
        if not patient:
            raise
        longer = {"bootstrap_timeout_ms": int(PATIENT_CONNECT_SECONDS * 1000)}
        return create_no_topics(make_client(client, options | longer))


def make_client(client: Any, options: dict[str, Any]) -> Any:
    """Make a client, or raise its error and leave nothing behind: kafka-python's thread and sockets would stay."""
    networks = []

    def network(**settings: Any) -> Any:
        networks.append(client.DEFAULT_CONFIG["kafka_client"](**settings))
        close_every_transport(networks[-1])
        return networks[-1]

    try:
        return client(**options, kafka_client=network)
    except BaseException:
        for made in networks:
            with suppress(Exception):  # the first error says more
                made.close()
        raise


def close_every_transport(network: Any) -> None:
    """Let a network that is closed close each socket that it has connected.

    kafka-python 3.0 closes connections from the caller's thread while its own may be setting one up, which then keeps
    its socket until the garbage collector finds it. Only the instance is changed.
    """
    manager = getattr(network, "_manager", None)
    build, close = getattr(manager, "_build_transport", None), network.close
    if manager is None or build is None:
        return
    transports: WeakSet[Any] = WeakSet()

    async def build_and_note(*arguments: Any, **options: Any) -> Any:
        transport = await build(*arguments, **options)
        transports.add(transport)
        return transport

    def close_all(node_id: Any = None) -> None:
        try:
            close(node_id)
        finally:
            if node_id is None:
                for transport in list(transports):
                    if (left := transport._sock) is not None:
                        left.close()

    manager._build_transport, network.close = build_and_note, close_all


def create_no_topics(client: Any) -> Any:
    """Let a client that asks for a topic not create it: kafka-python 3.0 does not hand `allow_auto_create_topics` on.

    Brokers create a topic that is asked for unless the request says otherwise; one that was deleted came back.
    """
    manager = getattr(client, "_manager", None)
    for cluster in (getattr(client, "_metadata", None), getattr(manager, "cluster", None)):
        if isinstance(config := getattr(cluster, "config", None), dict):
            config["allow_auto_create_topics"] = False
    return client


def unreachable_reason(bootstrap_servers: str) -> str | None:
    """Why none of these addresses accepts a connection, or None if one does."""
    reasons = []
    for host, port in parse_addresses(bootstrap_servers):
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        except socket.gaierror:
            reasons.append(f"the host name {host!r} is not known")
        except TimeoutError:
            reasons.append(f"{host}:{port} does not answer")
        except OSError as error:
            reasons.append(f"nothing listens on {host}:{port} ({error.strerror or error})")
        else:
            return None
    return "; ".join(reasons)
