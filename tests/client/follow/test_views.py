"""A replaced view is freed by the follower's thread, also when a call was the last to use it."""

import threading
import weakref

import numpy as np

from springtide_client.follow.follower import Follower
from springtide_client.follow.views import RetiredViews
from springtide_client.log.directory import LogDirectory


def test_a_view_stays_until_nothing_else_uses_it(log) -> None:
    follower = Follower(LogDirectory(log.path))
    follower.poll()
    in_use = follower.view
    retired = RetiredViews()
    retired.add(in_use)
    follower.close()
    del follower
    retired.free_unused()
    assert len(retired) == 1
    gone = weakref.ref(in_use)
    del in_use
    assert gone() is not None
    retired.free_unused()
    assert gone() is None
    assert len(retired) == 0


def test_the_view_of_a_call_in_flight_is_freed_where_the_log_is_followed(log) -> None:
    follower = Follower(LogDirectory(log.path))
    follower.poll()
    begun, go_on, freed_in = threading.Event(), threading.Event(), []

    def call() -> None:
        view = follower.view
        weakref.finalize(view, lambda: freed_in.append(threading.get_ident())).atexit = False
        begun.set()
        go_on.wait()
        del view

    caller = threading.Thread(target=call)
    caller.start()
    begun.wait()
    for _ in range(3):
        log.append({(0, 1): (np.ones(log.dim, np.float32), 1, 1000)})
        follower.poll()
    assert not freed_in
    go_on.set()
    caller.join()
    assert not freed_in
    follower.poll()
    assert freed_in == [threading.get_ident()]
    follower.close()
