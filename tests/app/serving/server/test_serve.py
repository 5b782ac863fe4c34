import pytest

from springtide.app.errors import UserError
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server.address import ServeError
from springtide.app.serving.server.serve import serve


def test_a_port_in_use_and_an_unprotected_bind_are_errors(world, tmp_path):
    client = world.serve()
    with pytest.raises(ServeError, match=r"port \d+: another program listens there: stop it"):
        serve(tmp_path, ServeConfig(port=client.base_url.port))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"\[serve\] cache_path = .*cannot be used"):
        serve(tmp_path, ServeConfig(port=0, cache_path=str(tmp_path / "file")))
    with pytest.raises(UserError, match="tokens_file"):
        serve(tmp_path, ServeConfig(host="0.0.0.0", port=0))
    with pytest.raises(ServeError, match=r"port 0: Cannot assign requested address: correct \[serve\] host"):
        serve(tmp_path, ServeConfig(host="192.0.2.1", port=0, insecure=True))
