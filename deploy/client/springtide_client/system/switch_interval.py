"""Let other Python threads run often while a long piece of work in pure Python goes on beside them."""

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# a thread that asks for the GIL waits up to the interval, several times a call; Python's default is 5 ms
SHORT_INTERVAL_SECONDS = 0.0005

_lock = threading.Lock()
_num_users = 0
_interval_before = 0.0


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shorten the interpreter's switch interval within the context; a shorter one stays.

    The setting is the process's: the last of several contexts restores it, unless somebody changed it meanwhile.
    """
    global _num_users, _interval_before
    with _lock:
        if _num_users == 0:
            _interval_before = sys.getswitchinterval()
            if _interval_before > SHORT_INTERVAL_SECONDS:
                sys.setswitchinterval(SHORT_INTERVAL_SECONDS)
        _num_users += 1
    try:
        yield
    finally:
        with _lock:
            _num_users -= 1
            is_ours = math.isclose(sys.getswitchinterval(), SHORT_INTERVAL_SECONDS)
            if _num_users == 0 and is_ours:
                sys.setswitchinterval(max(_interval_before, SHORT_INTERVAL_SECONDS))
