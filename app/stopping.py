"""An event that Ctrl-C and SIGTERM set."""

import signal
import threading


def stop_on_signals() -> threading.Event:
    """The event; from now on the two signals set it and do nothing else."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping
