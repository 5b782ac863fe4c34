"""The address at which the server listens. Imports no web framework: `springtide run` tries to bind it at its start."""

import errno
import os
import socket
import time

from springtide.app.serving.config import ServeConfig
from springtide_client.errors import SpringtideError

WAIT_SECONDS = 5.0  # a server that is being stopped may still listen
POLL_SECONDS = 0.05


class ServeError(SpringtideError):
    """The server cannot listen at its address. `may_pass`: another program does, and may stop."""

    may_pass = False


def bind(config: ServeConfig) -> socket.socket:
    """Bind a listening socket to the configured address; ServeError if that is not possible."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "another program listens there: stop it, or set another [serve] port"
        elif error.errno == errno.EACCES:
            reason = "ports below 1024 need a privilege: set another [serve] port"
        else:  # the text of `create_server` repeats the address
            number = error.errno or 0
            text = os.strerror(number) if number in errno.errorcode else error.strerror or str(error)
            reason = f"{text}: correct [serve] host"
        failure = ServeError(f"cannot listen on {config.host} port {config.port}: {reason}")
        failure.may_pass = error.errno == errno.EADDRINUSE
        raise failure from None


def wait_until_free(config: ServeConfig, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Return once the configured address can be bound. ServeError if another program still has it after the wait.

    For a supervisor, which would start its server again and again: it asks before it starts anything.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            bind(config).close()
            return
        except ServeError as error:
            if not error.may_pass or time.monotonic() >= deadline:
                raise
        time.sleep(POLL_SECONDS)
