import pytest

from app.serving.config import ServeConfig
from app.serving.http.authorization import Authorizer, is_local_name, scope_of
from app.serving.http.errors import ApiError
from app.serving.http.tokens import Tokens, load_tokens


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/", None),
        ("/healthz", None),
        ("/readyz", None),
        ("/docs", None),
        ("/v1/status", "read"),
        ("/metrics", "read"),
        ("/v1/embeddings/user_id", "read"),
        ("/v1/log", "read"),
        ("/v1/predict", "predict"),
        ("/v1/forget", "admin"),
        ("/v1/table/", "admin"),
        ("/v1/rollback", "admin"),
        ("/anything/else", "read"),
    ],
)
def test_every_path_has_a_scope(path, scope):
    assert scope_of(path) == scope


@pytest.mark.parametrize(
    "host", ["", "localhost", "localhost:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:80", "a.localhost"]
)
def test_names_of_this_machine(host):
    assert is_local_name(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "10.0.0.1:80", "localhost.evil.example", "[::2]"]
)
def test_a_page_elsewhere_cannot_read_an_open_server(host):
    assert not is_local_name(host)
    guard = Authorizer(ServeConfig(), load_tokens(ServeConfig(), {}))
    with pytest.raises(ApiError) as caught:
        guard.check("/v1/status", {"host": host})
    assert caught.value.status == 421
    with_token = Authorizer(ServeConfig(), Tokens({"a-long-token": frozenset({"read"})}))
    with_token.check("/v1/status", {"host": host, "authorization": "Bearer a-long-token"})
