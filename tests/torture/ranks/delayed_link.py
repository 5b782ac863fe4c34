"""Two hosts joined by a link that can be delayed, where the kernel has no netem: a process forwards Ethernet frames.

Each host is a network namespace with a TAP device; what one sends is read here, held back, and written to the other.
Needs root, `ip`, and /dev/net/tun.
"""

import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench.harness.hosts import ADDRESSES, DEVICE

TUN = Path("/dev/net/tun")
SET_INTERFACE = 0x400454CA  # TUNSETIFF
TAP_WITHOUT_HEADER = 0x0002 | 0x1000
MAX_FRAME = 1 << 16
LOOK_SECONDS = 0.1  # for another delay


def why_not() -> str:
    """Return why there can be no TAP device here; "" if there can."""
    try:
        os.close(_open_tap(f"try{os.getpid() % 100_000}"))
    except OSError as error:
        return f"{TUN}: {error.strerror}"
    return ""


class DelayedLink(threading.Thread):
    """Forwards what comes from each of two files to the other, so many seconds later as `delay_file` says."""

    def __init__(self, ends: Sequence[int], delay_file: Path) -> None:
        """`ends`: descriptors that give a frame at each read, and take one at each write."""
        super().__init__(name="link", daemon=True)
        self.num_frames = 0
        self._ends, self._delay_file = ends, delay_file
        self._held: list[tuple[float, int, int, bytes]] = []  # when it is due, number, to which end, frame
        self._over = threading.Event()

    def run(self) -> None:
        """Forward until `stop`."""
        poll = select.poll()
        for end in self._ends:
            os.set_blocking(end, False)
            poll.register(end, select.POLLIN)
        delay, look_at = 0.0, 0.0
        while not self._over.is_set():
            now = time.monotonic()
            if now >= look_at:
                with suppress(FileNotFoundError, ValueError):
                    delay = float(self._delay_file.read_text())
                look_at = now + LOOK_SECONDS
            due = self._held[0][0] - now if self._held else LOOK_SECONDS
            for end, _ in poll.poll(1000 * min(LOOK_SECONDS, max(0.0, due))):
                self._take(end, delay)
            self._release()

    def stop(self) -> None:
        """Forward nothing more."""
        self._over.set()
        self.join()

    def _take(self, end: int, delay: float) -> None:
        other = self._ends[1 - self._ends.index(end)]
        with suppress(OSError):  # nothing more to read, or a device that is down
            while frame := os.read(end, MAX_FRAME):
                heapq.heappush(self._held, (time.monotonic() + delay, self.num_frames, other, frame))
                self.num_frames += 1

    def _release(self) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            with suppress(OSError):  # a device that is down loses frames
                os.write(self._held[0][2], self._held[0][3])
            heapq.heappop(self._held)


@contextmanager
def two_delayed_hosts(delay_file: Path) -> Iterator[Sequence[str]]:
    """Make two namespaces with such a link; yield their names, for `ip netns exec`."""
    names = [f"springtide-{os.getpid()}-{number}" for number in range(2)]
    ends: list[int] = []
    link = None
    try:
        for number, (name, address) in enumerate(zip(names, ADDRESSES, strict=True)):
            device, inside = f"st{os.getpid() % 100_000}{number}", ("ip", "netns", "exec", name)
            _run("ip", "netns", "add", name)
            ends.append(_open_tap(device))
            _run("ip", "link", "set", device, "netns", name, "name", DEVICE)
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", DEVICE)
            _run(*inside, "ip", "link", "set", DEVICE, "up")
            _run(*inside, "ip", "link", "set", "lo", "up")
        link = DelayedLink(ends, delay_file)
        link.start()
        yield names
    finally:
        if link is not None:
            link.stop()
        for end in ends:
            os.close(end)
        for name in names:
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", name)


def _open_tap(name: str) -> int:
    """Make a TAP device, which is there as long as the returned descriptor is open."""
    tap = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tap, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    except OSError:
        os.close(tap)
        raise
    return tap


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
