import pytest

from springtide.stream.config import SourceConfig
from springtide.stream.kafka.config import KafkaConfig

OAUTH = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"security_protocol": "TLS"}, "security_protocol must be one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM"}, "sasl_mechanism must be one of"),
        ({"sasl_mechanism": "PLAIN"}, 'needs security_protocol = "SASL_PLAINTEXT"'),
        ({"security_protocol": "SSL", "sasl_mechanism": "PLAIN"}, 'needs security_protocol = "SASL_SSL"'),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl_plain_username and sasl_plain_password"),
        (OAUTH, "needs sasl_oauth_token_url"),
        (OAUTH | {"sasl_oauth_token_url": "https://a/token"}, "sasl_oauth_client_id and sasl_oauth_client_secret"),
        (OAUTH | {"sasl_oauth_token": 7}, "must be strings"),
        (
            OAUTH
            | {"sasl_oauth_token_url": "a/token", "sasl_oauth_client_id": "b", "sasl_oauth_client_secret": "env:C"},
            "must begin with https://",
        ),
    ],
)
def test_security_settings_that_lack_something_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        SourceConfig(bootstrap_servers="localhost:9092", kafka=options)


def test_oauth_settings_become_one_token_provider_for_all_clients():
    options = OAUTH | {"sasl_oauth_token": "env:TOKEN"}
    one, other = (KafkaConfig(bootstrap_servers="a:1", options=options).client_options() for _ in range(2))
    assert one["sasl_oauth_token_provider"] is other["sasl_oauth_token_provider"]
    assert "sasl_oauth_token" not in one


def test_a_key_without_a_password_asks_nobody_for_one():
    options = {"security_protocol": "SSL", "ssl_certfile": "a.pem", "ssl_keyfile": "a.key"}
    assert KafkaConfig(bootstrap_servers="a:1", options=options).client_options()["ssl_password"] == ""
