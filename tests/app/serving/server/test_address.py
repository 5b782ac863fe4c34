import socket

import pytest

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server import address
from springtide.app.serving.server.address import ServeError, wait_until_free


def test_an_address_is_free_once_the_other_program_has_stopped(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = ServeConfig(port=listener.getsockname()[1])
        with pytest.raises(ServeError, match="another program listens there"):
            wait_until_free(config, wait_seconds=0.0)
        monkeypatch.setattr(address.time, "sleep", lambda seconds: listener.close())
        wait_until_free(config, wait_seconds=60.0)


def test_what_waiting_does_not_mend_is_an_error_at_once(monkeypatch):
    monkeypatch.setattr(address.time, "sleep", lambda seconds: pytest.fail("it waited"))
    with pytest.raises(ServeError, match=r"correct \[serve\] host"):
        wait_until_free(ServeConfig(host="192.0.2.1", port=0, insecure=True))
