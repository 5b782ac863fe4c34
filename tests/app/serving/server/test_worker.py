import gc
import os
import signal
import sys
import threading

import httpx
import pytest

from springtide.app.serving.config import ServeConfig
from springtide.app.serving.server.serve import serve
from tests.support.waiting import wait_until


def in_a_process(world, on_listening):
    """A server in a child that has all imported by now; returns its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            serve(world.log.path, ServeConfig(port=0), on_listening=on_listening)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_exit_code_0_despite_open_streams(world, number):
    world.log.start_epoch()
    read_end, write_end = os.pipe()
    pid = in_a_process(world, lambda url: os.write(write_end, url.encode()))
    with httpx.Client(base_url=os.read(read_end, 100).decode(), timeout=300) as client:
        world.served(client, world.log.number)
        with client.stream("GET", f"/v1/log?after={world.log.number}") as answer:
            assert answer.status_code == 200
            os.kill(pid, number)
            _, status = os.waitpid(pid, 0)
    assert status == 0
    os.close(read_end)
    os.close(write_end)


def test_a_serving_process_has_a_short_switch_interval_and_frozen_objects(world):
    world.log.start_epoch()
    read_end, write_end = os.pipe()

    def on_listening(url):
        os.write(write_end, f"{sys.getswitchinterval() < 0.005} {gc.get_freeze_count() > 0}".encode())
        os._exit(0)

    os.waitpid(in_a_process(world, on_listening), 0)
    assert os.read(read_end, 100) == b"True True"
    os.close(read_end)
    os.close(write_end)


def test_objects_of_the_first_view_are_frozen_for_the_garbage_collector(world):
    read_end, write_end = os.pipe()

    def on_listening(url):
        frozen = gc.get_freeze_count()
        os.write(write_end, b"listens ")

        def wait():
            try:
                wait_until(lambda: gc.get_freeze_count() > frozen)
                os.write(write_end, b"frozen")
            finally:
                os._exit(0)

        threading.Thread(target=wait, daemon=True).start()

    pid = in_a_process(world, on_listening)
    os.close(write_end)
    assert os.read(read_end, 100) == b"listens "
    world.log.start_epoch()
    assert os.read(read_end, 100) == b"frozen"
    os.waitpid(pid, 0)
    os.close(read_end)
