"""A link that is delayed loses nothing, keeps the order, and delivers nothing before its time."""

import socket
import time

from tests.torture.ranks.delayed_link import DelayedLink


def test_frames_arrive_in_order_and_not_before_their_time(tmp_path):
    delay = tmp_path / "delay"
    delay.write_text("0.05")
    (near, near_end), (far, far_end) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    link = DelayedLink([near_end.fileno(), far_end.fileno()], delay)
    with near, near_end, far, far_end:
        link.start()
        began = time.monotonic()
        for number in range(20):
            near.send(b"%d" % number)
        assert [far.recv(10) for _ in range(20)] == [b"%d" % number for number in range(20)]
        assert time.monotonic() - began >= 0.05
        far.send(b"back")
        assert near.recv(10) == b"back"
        link.stop()
    assert link.num_frames == 21
