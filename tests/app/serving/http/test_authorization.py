import json

import pytest

from springtide.app.serving.api import ROUTES
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.http.authorization import Authorizer, Tokens, is_local_name, load_tokens, parse_tokens
from springtide.app.serving.http.errors import ApiError

READ, ADMIN = "read-secret", "admin-secret"


def error_status(tokens, authorization, scope):
    with pytest.raises(ApiError) as caught:
        tokens.check(authorization, scope)
    return caught.value.status


def test_without_tokens_loopback_is_open_except_for_admin():
    tokens = load_tokens(ServeConfig(), {})
    tokens.check(None, "read")
    tokens.check(None, "predict")
    assert error_status(tokens, None, "admin") == 401
    with pytest.raises(ApiError) as caught:
        tokens.check("Bearer SECRET-of-another", "admin")
    assert "put admin=SECRET into tokens_file" in caught.value.hint


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "model.example"])
def test_a_bind_beyond_loopback_needs_a_token(host):
    with pytest.raises(ValueError, match="tokens_file"):
        load_tokens(ServeConfig(host=host), {})
    with pytest.raises(ValueError, match="tokens_file"):
        load_tokens(ServeConfig(host=host), {"SPRINGTIDE_TOKENS": f"admin={ADMIN}"})
    load_tokens(ServeConfig(host=host, insecure=True), {}).check(None, "read")
    assert error_status(load_tokens(ServeConfig(host=host, insecure=True), {}), None, "admin") == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_has_many_names(host):
    assert load_tokens(ServeConfig(host=host), {}).open_scopes == {"read", "predict"}


def test_a_token_has_the_scopes_it_names_and_no_other():
    tokens = load_tokens(ServeConfig(host="0.0.0.0"), {"SPRINGTIDE_TOKENS": f"read={READ}; admin={ADMIN}"})
    tokens.check(f"Bearer {READ}", "read")
    tokens.check(f"bearer {ADMIN}", "admin")
    assert error_status(tokens, f"Bearer {READ}", "admin") == 403
    assert error_status(tokens, f"Bearer {READ}", "predict") == 403
    assert error_status(tokens, f"Bearer {ADMIN}", "read") == 403
    assert error_status(tokens, f"Bearer {READ}x", "read") == 401
    assert error_status(tokens, f"Basic {READ}", "read") == 401
    assert error_status(tokens, "Bearer ", "read") == 401
    assert error_status(tokens, "Bearer \udcff\xff", "read") == 401
    assert error_status(tokens, None, "read") == 401


def test_tokens_come_from_the_file_and_the_environment(tmp_path, caplog):
    path = tmp_path / "tokens"
    path.write_text(f"# who reads\nread,predict = {READ}\n\nadmin = with=sign==\n")
    path.chmod(0o644)
    config = ServeConfig(host="0.0.0.0", tokens_file=str(path))
    tokens = load_tokens(config, {"SPRINGTIDE_TOKENS": f"admin={ADMIN}"})
    tokens.check(f"Bearer {READ}", "predict")
    tokens.check("Bearer with=sign==", "admin")
    tokens.check(f"Bearer {ADMIN}", "admin")
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("text", ["read", "reads=12345678", "=12345678", "read=short", "read=with blank in", "read="])
def test_a_malformed_entry_is_reported_by_number_without_its_token(text):
    with pytest.raises(ValueError, match="entry 2") as caught:
        parse_tokens(f"\n{text}", origin="tokens")
    assert text.partition("=")[2] == "" or text.partition("=")[2] not in str(caught.value)


def test_a_missing_tokens_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="tokens_file"):
        load_tokens(ServeConfig(tokens_file=str(tmp_path / "none")), {})


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/", "public"),
        ("/healthz", "public"),
        ("/readyz", "public"),
        ("/docs", "public"),
        ("/v1/status", "read"),
        ("/metrics", "read"),
        ("/v1/embeddings/user_id", "read"),
        ("/v1/log", "read"),
        ("/v1/predict", "predict"),
        ("/v1/rank", "predict"),
        ("/v1/forget", "admin"),
        ("/v1/table/", "admin"),
        ("/v1/rollback", "admin"),
        ("/v1/commands/7", "admin"),
        ("/v1/commands/7/8", "admin"),
        ("/anything/else", "read"),
    ],
)
def test_every_path_has_a_scope(path, scope):
    assert ROUTES.scope_of(path) == scope


@pytest.mark.parametrize(
    "host", ["", "localhost", "localhost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:80", "a.localhost"]
)
def test_local_host_names_are_recognized(host):
    assert is_local_name(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "10.0.0.1:80", "localhost.evil.example", "[::2]"]
)
def test_a_foreign_host_header_is_rejected_without_tokens(host):
    assert not is_local_name(host)
    guard = Authorizer(ServeConfig(), load_tokens(ServeConfig(), {}), ROUTES.scope_of)
    with pytest.raises(ApiError) as caught:
        guard.check("/v1/status", {"host": host})
    assert caught.value.status == 421
    with_token = Authorizer(ServeConfig(), Tokens({"a-long-token": frozenset({"read"})}), ROUTES.scope_of)
    with_token.check("/v1/status", {"host": host, "authorization": "Bearer a-long-token"})


def test_each_route_needs_a_token_of_its_scope(world, monkeypatch):
    monkeypatch.setenv("SPRINGTIDE_TOKENS", "read=reader-secret;predict=predict-secret;admin=admin-secret")
    world.log.start_epoch()
    client = world.serve()
    reader, admin = ({"Authorization": f"Bearer {name}-secret"} for name in ("reader", "admin"))
    assert client.get("/readyz").status_code in (200, 503)
    assert client.get("/").status_code == 200
    assert client.get("/v1/status").status_code == 401
    assert client.get("/v1/status").headers["www-authenticate"] == "Bearer"
    assert client.get("/v1/status", headers=reader).status_code == 200
    assert client.post("/v1/predict", json={}, headers=reader).status_code == 403
    assert client.post("/v1/embeddings/user_id", json={"ids": []}).status_code == 401
    world.served(client, world.log.number)
    forget = {"feature": "user_id", "id": 5}
    refused = client.post("/v1/forget", json=forget, headers=admin)
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "not_supported_yet")
    assert not (world.log.path / "commands").exists()
    world.log.write_status(commands=["forget"])
    accepted = client.post("/v1/forget", json=forget, headers=admin)
    assert accepted.status_code == 202
    order = json.loads((world.log.path / "commands" / f"{accepted.json()['command']}.json").read_text())
    assert order["keys"] == [forget]
    assert client.post("/v1/forget", json=forget, headers=reader).status_code == 403
    assert client.post("/v1/rollback", json={"version": 5}, headers=admin).status_code == 501
    assert client.patch("/v1/table", json={"lr": 0.5}, headers=admin).status_code == 501
