import itertools

import pytest

from springtide.stream.errors import AccessError, RetriableError
from springtide.stream.kafka.oauth import OAuthTokens
from tests.support.ports import free_port
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer


@pytest.fixture
def server():
    numbers = itertools.count()
    with TokenServer(lambda: f"token {next(numbers)}", expires_in=100) as server:
        yield server


def options(server, **changes):
    given = {"sasl_oauth_token_url": server.url, "sasl_oauth_client_id": CLIENT_ID}
    return given | {"sasl_oauth_client_secret": "env:CLIENT_SECRET"} | changes


@pytest.fixture(autouse=True)
def _secret(monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", CLIENT_SECRET)


def test_a_token_is_used_until_most_of_its_life_is_over(server):
    now = [0.0]
    tokens = OAuthTokens(options(server, sasl_oauth_scope="kafka"), clock=lambda: now[0])
    assert [tokens.token(), tokens.token()] == ["token 0", "token 0"]
    now[0] = 79.0
    assert tokens.token() == "token 0"
    now[0] = 80.0
    assert tokens.token() == "token 1"
    assert server.scopes == ["kafka", "kafka"]


def test_a_refused_token_is_asked_for_again(server):
    tokens = OAuthTokens(options(server))
    assert tokens.token() == "token 0"
    tokens.forget()
    assert tokens.token() == "token 1"


def test_a_token_may_come_from_a_file_that_changes(tmp_path):
    path = tmp_path / "token"
    tokens = OAuthTokens({"sasl_oauth_token": f"file:{path}"})
    for text in ("first", "second"):
        path.write_text(text + "\n")
        assert tokens.token() == text


def test_refused_credentials_are_an_error_without_the_secret(server, monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", "not the one")
    with pytest.raises(AccessError, match=r"refuses the client 'springtide' \(401 invalid_client\)") as raised:
        OAuthTokens(options(server)).token()
    assert "not the one" not in str(raised.value)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_endpoint_in_trouble_is_waited_for(server, status):
    server.status = status
    tokens = OAuthTokens(options(server))
    with pytest.raises(RetriableError, match=f"answers {status}"):
        tokens.token()
    server.status = 200
    assert tokens.token() == "token 0"


def test_an_endpoint_that_is_away_is_waited_for():
    tokens = OAuthTokens(
        {"sasl_oauth_token_url": f"http://127.0.0.1:{free_port()}/", "sasl_oauth_client_id": "a"}
        | {"sasl_oauth_client_secret": "b"}
    )
    with pytest.raises(RetriableError, match="does not answer"):
        tokens.token()


def test_an_address_that_is_no_token_endpoint_is_named(server):
    server.answer = lambda *_: (200, {"hello": "there"})
    with pytest.raises(AccessError, match="no token endpoint"):
        OAuthTokens(options(server)).token()
