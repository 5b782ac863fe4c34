import pytest

from springtide.stream.errors import AccessError
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.secrets import hide_secrets, is_secret, read_secrets

SCRAM = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "trainer"}


def test_a_secret_is_read_from_the_environment_or_a_file_when_it_is_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "password"
    options = {"sasl_plain_password": "env:KAFKA_PASSWORD", "ssl_password": f"file:{path}", "api_version_auto": 3}
    for first, second in (("one", "two"), ("three", "four")):
        monkeypatch.setenv("KAFKA_PASSWORD", first)
        path.write_text(f"{second}\nnot this line\n")
        assert read_secrets(options) == options | {"sasl_plain_password": first, "ssl_password": second}


def test_a_value_that_only_looks_like_a_reference_is_the_secret():
    assert read_secrets({"sasl_plain_password": "envy:of:all"}) == {"sasl_plain_password": "envy:of:all"}


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), (b"", "empty"), (b" \n ", "empty"), (b"\xff\xfe", "no text")]
)
def test_a_file_without_a_secret_is_named(tmp_path, content, says):
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AccessError, match=says) as raised:
        read_secrets({"sasl_plain_password": f"file:{path}"})
    assert str(path) in str(raised.value)
    assert "sasl_plain_password" in str(raised.value)


def test_a_variable_without_a_secret_is_named(monkeypatch):
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    config = KafkaConfig(bootstrap_servers="a:1", options=SCRAM | {"sasl_plain_password": "env:KAFKA_PASSWORD"})
    with pytest.raises(AccessError, match="no variable KAFKA_PASSWORD"):
        config.client_options()


def test_no_text_shows_a_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", "from the environment")
    (tmp_path / "key").write_text("from a file\n")
    options = {
        "sasl_plain_username": "trainer",
        "sasl_plain_password": "env:KAFKA_PASSWORD",
        "ssl_password": f"file:{tmp_path / 'key'}",
        "sasl_oauth_client_secret": "in clear",
        "sasl_oauth_client_id": "env:NOT_SET_ANYWHERE",
    }
    text = "trainer said from the environment, from a file and in clear"
    assert hide_secrets(text, options) == "trainer said ***, *** and ***"


def test_options_are_not_shown_with_the_settings():
    config = KafkaConfig(bootstrap_servers="a:1", options=SCRAM | {"sasl_plain_password": "hunter22"})
    assert "hunter22" not in repr(config)


def test_names_of_secret_options():
    secret = [key for key in ("sasl_plain_password", "sasl_oauth_token", "sasl_oauth_client_secret") if is_secret(key)]
    assert len(secret) == 3
    assert not any(map(is_secret, ("sasl_plain_username", "ssl_cafile", "sasl_oauth_token_url", "sasl_mechanism")))
