"""Finds out why a broker refuses a client, one step of a connection after the other, on a connection of its own.

kafka-python tries again for ever and reports a timeout, whatever the broker had answered. Asked only after a client
could not connect.
"""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Any

from springtide.stream.errors import AccessError, StreamError
from springtide.stream.kafka.config import KafkaConfig, parse_addresses
from springtide.stream.kafka.library import kafka

CHECK_SECONDS = 2.0  # of all steps together
ALERT_SECONDS = 0.3  # how soon after a TLS handshake a broker that refuses our certificate says so
MAX_RESPONSE_BYTES = 1 << 20
METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 3, 17, 18, 36
UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE = 33, 34
# the alerts (RFC 8446, section 6.2) by which a server refuses a client's certificate, as OpenSSL names them
CERTIFICATE_ALERTS = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "HANDSHAKE_FAILURE",
    "ACCESS_DENIED",
)


def connection_problem(config: KafkaConfig) -> StreamError | None:
    """What the brokers at the address object to; None if one of them accepts us, or if none answers.

    An AccessError does not mend itself; another StreamError may.
    """
    problem: StreamError | None = None
    for host, port in parse_addresses(config.bootstrap_servers):
        try:
            _BrokerCheck(config, host, port).run()
        except StreamError as error:
            if problem is None or isinstance(error, AccessError):
                problem = error
        except (OSError, EOFError, struct.error, ValueError, RuntimeError):
            continue  # silent, gone, or no Kafka: others say so
        else:
            return None
    return problem


class _BrokerCheck:
    """The steps of one connection: TCP, TLS, the protocol, SASL."""

    def __init__(self, config: KafkaConfig, host: str, port: int) -> None:
        self._config, self._host, self._port = config, host, port
        self._address = f"{host}:{port}"
        self._deadline = time.monotonic() + CHECK_SECONDS

    def run(self) -> None:
        """Raise StreamError for what the broker objects to, OSError or EOFError where it does not answer."""
        options = self._config.client_options()
        with self._connected() as plain:
            if self._config.uses_tls:
                with self._tls(plain, options) as encrypted:
                    self._check_protocol(encrypted, options)
            else:
                self._check_protocol(plain, options)

    def _check_protocol(self, sock: socket.socket, options: dict[str, Any]) -> None:
        try:
            _request(sock, API_VERSIONS, 0, b"")
        except TimeoutError:
            raise
        except ssl.SSLError as error:
            self._raise_refused_certificate(error, options)
            raise
        except (OSError, EOFError):
            if not self._config.uses_tls and self._speaks_tls():
                secure = "SASL_SSL" if self._config.uses_sasl else "SSL"
                raise AccessError(
                    f"the broker at {self._address} speaks TLS, and security_protocol is "
                    f'{self._config.security_protocol}: set [source] kafka security_protocol = "{secure}", '
                    f"or correct the port"
                ) from None
            raise
        mechanism = options.get("sasl_mechanism")
        if self._config.uses_sasl:
            self._check_sasl(sock, str(mechanism), options)
            return
        try:
            _request(sock, METADATA, 1, struct.pack(">i", 0))
        except TimeoutError:
            raise
        except (OSError, EOFError):
            self._raise_wants_credentials(options)
            raise

    def _raise_wants_credentials(self, options: dict[str, Any]) -> None:
        """Raise AccessError if it does, on another connection: it closed the one that showed none."""
        with self._connected() as plain:
            if self._config.uses_tls:
                with tls_context(options).wrap_socket(plain, server_hostname=self._host) as encrypted:
                    code, mechanisms = _handshake(encrypted, "PLAIN")
            else:
                code, mechanisms = _handshake(plain, "PLAIN")
        if code != ILLEGAL_SASL_STATE and mechanisms:
            wanted = "SASL_SSL" if self._config.uses_tls else "SASL_PLAINTEXT"
            raise AccessError(
                f"the broker at {self._address} wants credentials ({', '.join(mechanisms)}): set [source] kafka "
                f'security_protocol = "{wanted}" and sasl_mechanism, or correct the port'
            )

    def _check_sasl(self, sock: socket.socket, name: str, options: dict[str, Any]) -> None:
        code, mechanisms = _handshake(sock, name)
        if code == ILLEGAL_SASL_STATE:
            plain = "SSL" if self._config.uses_tls else "PLAINTEXT"
            raise AccessError(
                f"the broker at {self._address} takes no credentials at this port: "
                f'set [source] kafka security_protocol = "{plain}", or correct the port'
            )
        if code == UNSUPPORTED_SASL_MECHANISM or name not in mechanisms:
            raise AccessError(
                f"the broker at {self._address} does not accept sasl_mechanism = {name!r}, "
                f"only {', '.join(mechanisms) or 'none'}: correct [source] kafka"
            )
        mechanism = kafka.net.sasl.get_sasl_mechanism(name)(host=self._host, **options)
        while not mechanism.is_done():
            self._limit(sock)
            code, reason, answer = _authenticate(sock, mechanism.auth_bytes())
            if code:
                self._raise_refused_credentials(name, reason)
            try:
                mechanism.receive(answer)
            except (ValueError, KeyError) as error:  # SCRAM: the server's proof is wrong
                self._raise_refused_credentials(name, str(error))

    def _raise_refused_credentials(self, mechanism: str, reason: str) -> None:
        if (tokens := self._config.oauth_tokens) is not None:
            tokens.forget()
            whose, what = "the token", "the token endpoint's settings, and what the broker expects of a token"
        else:
            whose = f"the credentials of user {self._config.options.get('sasl_plain_username')!r}"
            what = "sasl_plain_username and sasl_plain_password"
        text = self._config.hide_secrets(reason.strip().rstrip(".") or "without a reason")
        raise AccessError(
            f"the broker at {self._address} refuses {whose} ({mechanism}): {text}; check {what} in [source] kafka"
        )

    # TLS

    @contextlib.contextmanager
    def _tls(self, plain: socket.socket, options: dict[str, Any]) -> Iterator[socket.socket]:
        """Do the handshake, and look whether the broker refuses our certificate."""
        context = tls_context(options)
        try:
            encrypted = context.wrap_socket(plain, server_hostname=self._host.rstrip("."))
        except ssl.SSLCertVerificationError as error:
            raise AccessError(
                f"the certificate of the broker at {self._address} is not accepted ({error.verify_message}): "
                "set [source] kafka ssl_cafile to the certificate of the authority that signed it, "
                "or correct the host name"
            ) from None
        except TimeoutError:
            raise
        except OSError as error:
            if isinstance(error, ssl.SSLError):
                self._raise_refused_certificate(error, options)
            if self._speaks_plain():
                plain_protocol = "SASL_PLAINTEXT" if self._config.uses_sasl else "PLAINTEXT"
                raise AccessError(
                    f"the broker at {self._address} does not speak TLS at this port: set [source] kafka "
                    f'security_protocol = "{plain_protocol}", or correct the port'
                ) from None
            raise
        with encrypted:
            # with TLS 1.3 a server refuses a client's certificate after the client's handshake has ended
            encrypted.settimeout(min(ALERT_SECONDS, self._seconds_left()))
            try:
                encrypted.recv(1)
            except TimeoutError:
                pass
            except ssl.SSLError as error:
                self._raise_refused_certificate(error, options)
                raise
            self._limit(encrypted)
            yield encrypted

    def _raise_refused_certificate(self, error: ssl.SSLError, options: dict[str, Any]) -> None:
        reason = str(error.reason or "")
        alert = next((name for name in CERTIFICATE_ALERTS if reason.endswith(f"ALERT_{name}")), None)
        if alert is None:
            return
        said = alert.lower().replace("_", " ")
        if options.get("ssl_certfile"):
            raise AccessError(
                f"the broker at {self._address} does not accept our certificate ({said}): "
                "set [source] kafka ssl_certfile and ssl_keyfile to one that its authority has signed"
            )
        raise AccessError(
            f"the broker at {self._address} wants a certificate of ours ({said}): "
            "set [source] kafka ssl_certfile and ssl_keyfile"
        )

    def _speaks_tls(self) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with self._connected() as plain, context.wrap_socket(plain, server_hostname=self._host):
                return True
        except ssl.SSLError as error:
            return "ALERT" in str(error.reason or "")
        except OSError:
            return False

    def _speaks_plain(self) -> bool:
        try:
            with self._connected() as plain:
                _request(plain, API_VERSIONS, 0, b"")
        except (OSError, EOFError):
            return False
        return True

    # sockets

    def _connected(self) -> socket.socket:
        return socket.create_connection((self._host, self._port), timeout=self._seconds_left())

    def _limit(self, sock: socket.socket) -> None:
        sock.settimeout(self._seconds_left())

    def _seconds_left(self) -> float:
        if (seconds := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError
        return seconds


def tls_context(options: dict[str, Any]) -> ssl.SSLContext:
    """The TLS settings as kafka-python makes them. Raises AccessError for a file that cannot be used."""
    for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"):
        if not (path := options.get(key)):
            continue
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise AccessError(
                f'[source] kafka has {key} = "{path}", but that cannot be read: {error.strerror}'
            ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.get("ssl_check_hostname", True)
    try:
        if options.get("ssl_cafile"):
            context.load_verify_locations(options["ssl_cafile"])
        else:
            context.load_default_certs()
    except ssl.SSLError:
        raise AccessError(f"ssl_cafile = {options['ssl_cafile']!r} holds no certificate: name a PEM file") from None
    if options.get("ssl_certfile"):
        try:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password"))
        except (ssl.SSLError, ValueError):
            raise AccessError(
                f"the certificate {options['ssl_certfile']!r} and its key {options.get('ssl_keyfile')!r} cannot be "
                "used: check that they are PEM files that belong together, and ssl_password"
            ) from None
    return context


# the few requests, by hand: their first versions, whose headers have no tagged fields


def _request(sock: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    """Send a request, return the body of its response. Raises EOFError if that is none."""
    client = b"springtide"
    content = struct.pack(">hhih", api_key, version, 1, len(client)) + client + body
    sock.sendall(struct.pack(">i", len(content)) + content)
    (size,) = struct.unpack(">i", _receive(sock, 4))
    if not 4 <= size <= MAX_RESPONSE_BYTES:
        raise EOFError("not a response of Kafka's")
    return _receive(sock, size)[4:]


def _receive(sock: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = sock.recv(size - len(content))
        if not part:
            raise EOFError("the connection was closed")
        content += part
    return content


def _handshake(sock: socket.socket, mechanism: str) -> tuple[int, list[str]]:
    """SaslHandshake: the error code, and the mechanisms that the broker accepts."""
    name = mechanism.encode()
    response = _request(sock, SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
    code, number = struct.unpack_from(">hi", response)
    mechanisms, place = [], 6
    for _ in range(number):
        (size,) = struct.unpack_from(">h", response, place)
        mechanisms.append(response[place + 2 : place + 2 + size].decode(errors="replace"))
        place += 2 + size
    return code, mechanisms


def _authenticate(sock: socket.socket, token: bytes) -> tuple[int, str, bytes]:
    """SaslAuthenticate: the error code, its message, the broker's bytes."""
    response = _request(sock, SASL_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
    code, size = struct.unpack_from(">hh", response)
    place = 4 + max(size, 0)
    message = response[4:place].decode(errors="replace")
    (size,) = struct.unpack_from(">i", response, place)
    return code, message, response[place + 4 : place + 4 + max(size, 0)]
