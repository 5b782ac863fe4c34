import pytest

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.http.tokens import load_tokens, parse_tokens

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
