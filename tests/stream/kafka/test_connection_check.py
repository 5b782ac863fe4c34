"""What a broker objects to is named: by stand-ins that refuse in one way, and by Apache Kafka."""

import contextlib
import shutil
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from springtide.stream.errors import AccessError
from springtide.stream.kafka.admin import kafka_problem
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.connection_check import connection_problem
from tests.support.apache_kafka import PASSWORD, TOKEN_AUDIENCE, TOKEN_ISSUER, USER, shared_node
from tests.support.broker import apache_only
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.waiting import wait_until

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl on PATH")


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    ours, other = Authority(folder / "ours"), Authority(folder / "other")
    return SimpleNamespace(
        ours=ours, other=other, client=ours.issue("client"), stranger=other.issue("stranger"), server=ours.issue("host")
    )


@contextlib.contextmanager
def tls_server(certificate, *, clients_of=None):
    """A server that does TLS handshakes and says nothing more; its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of.certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                plain.settimeout(60)
                with contextlib.suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as encrypted:
                    encrypted.recv(1 << 16)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def problem(address, **options):
    found = connection_problem(KafkaConfig(bootstrap_servers=address, options=options))
    assert found is None or "\n" not in str(found)
    return found


def tls(authority, certificate=None):
    options = {"security_protocol": "SSL", "ssl_cafile": str(authority.certificate)}
    if certificate is not None:
        options |= {"ssl_certfile": str(certificate.certificate), "ssl_keyfile": str(certificate.key)}
    return options


@needs_openssl
def test_a_certificate_of_an_unknown_authority_is_named(authorities):
    with tls_server(authorities.server) as address:
        found = problem(address, **tls(authorities.other))
    assert isinstance(found, AccessError)
    assert "ssl_cafile" in str(found)


@needs_openssl
def test_a_certificate_of_another_host_is_named(authorities):
    with tls_server(authorities.ours.issue("elsewhere", host="elsewhere.invalid")) as address:
        assert "or correct the host name" in str(problem(address, **tls(authorities.ours)))


@needs_openssl
def test_a_missing_client_certificate_is_named(authorities):
    with tls_server(authorities.server, clients_of=authorities.ours) as address:
        assert "wants a certificate of ours" in str(problem(address, **tls(authorities.ours)))
        found = problem(address, **tls(authorities.ours, authorities.stranger))
        assert "does not accept our certificate" in str(found)
        assert isinstance(found, AccessError)


@needs_openssl
def test_plain_text_to_a_tls_port_is_named(authorities):
    with tls_server(authorities.server) as address:
        found = problem(address)
    assert isinstance(found, AccessError)
    assert 'security_protocol = "SSL"' in str(found)


@needs_openssl
def test_files_that_cannot_be_used_are_named(authorities, tmp_path):
    with tls_server(authorities.server) as address:
        missing = tmp_path / "missing.pem"
        assert f'ssl_cafile = "{missing}"' in str(problem(address, security_protocol="SSL", ssl_cafile=str(missing)))
        (tmp_path / "empty.pem").write_text("")
        found = problem(address, security_protocol="SSL", ssl_cafile=str(tmp_path / "empty.pem"))
        assert "holds no certificate" in str(found)
        mixed = SimpleNamespace(certificate=authorities.client.certificate, key=authorities.stranger.key)
        assert "belong together" in str(problem(address, **tls(authorities.ours, mixed)))


def test_silence_and_absence_are_no_objection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert problem(f"127.0.0.1:{listener.getsockname()[1]}") is None
    assert problem(f"127.0.0.1:{free_port()}") is None


def test_a_broker_that_accepts_us_has_no_problem(testbed):
    assert problem(testbed.broker.address) is None
    # of several brokers one is enough
    assert problem(f"127.0.0.1:{free_port()},{testbed.broker.address}") is None


SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
WRONG = {"sasl_plain_password": "not-the-password"}


def token(**claims):
    text = shared_node().token_key.token(**{"iss": TOKEN_ISSUER, "aud": TOKEN_AUDIENCE} | claims)
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": text}


def node_tls(**changes):
    node = shared_node()
    return tls(node.authority, node.client_certificate) | changes


def encrypted(options):
    return options | {"security_protocol": "SASL_SSL", "ssl_cafile": str(shared_node().authority.certificate)}


ACCEPTED = {
    "plain": ("address", dict),
    "PLAIN": ("sasl_address", lambda: SASL | {"sasl_mechanism": "PLAIN"}),
    "SCRAM-SHA-256": ("sasl_address", lambda: SASL | {"sasl_mechanism": "SCRAM-SHA-256"}),
    "SCRAM-SHA-512 over TLS": ("sasl_tls_address", lambda: encrypted(SASL | {"sasl_mechanism": "SCRAM-SHA-512"})),
    "OAUTHBEARER": ("sasl_address", token),
    "OAUTHBEARER over TLS": ("sasl_tls_address", lambda: encrypted(token())),
    "client certificate": ("tls_address", node_tls),
}
REFUSED = {
    "wrong password": ("sasl_address", lambda: SASL | {"sasl_mechanism": "PLAIN"} | WRONG, "credentials of user"),
    "wrong SCRAM": ("sasl_address", lambda: SASL | {"sasl_mechanism": "SCRAM-SHA-256"} | WRONG, "credentials of user"),
    "another issuer": ("sasl_address", lambda: token(iss="somebody"), "refuses the token"),
    "an expired token": ("sasl_address", lambda: token(iat=1, exp=2), "refuses the token"),
    "no certificate": ("tls_address", lambda: tls(shared_node().authority), "wants a certificate of ours"),
    "plain text to TLS": ("tls_address", dict, 'security_protocol = "SSL"'),
    "plain text to SASL": ("sasl_address", dict, "wants credentials (PLAIN"),
    "SASL to TLS": ("sasl_tls_address", lambda: SASL | {"sasl_mechanism": "PLAIN"}, 'security_protocol = "SASL_SSL"'),
    "SASL to plain": ("address", lambda: SASL | {"sasl_mechanism": "PLAIN"}, 'security_protocol = "PLAINTEXT"'),
    "TLS to plain": ("address", node_tls, "does not speak TLS"),
    "TLS to SASL": ("sasl_tls_address", node_tls, 'security_protocol = "SASL_SSL"'),
    "a mechanism it lacks": (
        "sasl_address",
        lambda: {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"},
        "only PLAIN",
    ),
}


@apache_only
@pytest.mark.parametrize("way", ACCEPTED)
def test_apache_kafka_accepts_what_is_right(way):
    place, make = ACCEPTED[way]
    options = make()
    assert problem(getattr(shared_node(), place), **options) is None
    assert "there is no topic" in kafka_problem(getattr(shared_node(), place), "nothing", options=options)


@apache_only
@pytest.mark.parametrize("way", REFUSED)
def test_apache_kafka_refuses_what_is_wrong_and_the_cause_is_named(way):
    place, make, says = REFUSED[way]
    found = problem(getattr(shared_node(), place), **make())
    assert isinstance(found, AccessError)
    assert says in str(found)
    assert PASSWORD not in str(found)
    assert WRONG["sasl_plain_password"] not in str(found)


@apache_only
def test_the_check_command_and_a_source_say_the_same(testbed):
    options = SASL | {"sasl_mechanism": "PLAIN"} | WRONG
    address = shared_node().sasl_address
    said = kafka_problem(address, "nothing", options=options)
    source = testbed.source(bootstrap_servers=address, kafka=options)
    with pytest.raises(AccessError, match="Invalid username or password") as raised:
        wait_until(lambda: source.poll(0.1))
    assert str(raised.value) == said
    assert source.status.state == "failed"
