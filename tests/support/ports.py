"""Free TCP ports on the loopback interface."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port on which nothing listens, outside the range that the kernel gives to outgoing connections.

    A port from that range could be taken by a client while a killed server restarts on it.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
