"""Hosts on one machine: network namespaces joined by a link whose rate is limited. Needs root, `ip` and `tc`."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

ADDRESSES = "10.87.0.1", "10.87.0.2"
DEVICE = "uplink"
BURST = "128kb"  # what a link that was idle may send at once: small, or computing would hide what travels


@contextmanager
def two_hosts(rate: str) -> Iterator[Sequence[str]]:
    """Make two namespaces with a link of this rate, such as "1gbit"; yield their names, for `ip netns exec`."""
    names = [f"springtide-{os.getpid()}-{number}" for number in range(2)]
    ends = [f"st{os.getpid() % 100_000}{letter}" for letter in "ab"]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            _run("ip", "link", "set", end, "netns", name, "name", DEVICE)
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", DEVICE)
            _run(*inside, "ip", "link", "set", DEVICE, "up")
            _run(*inside, "ip", "link", "set", "lo", "up")
            limit = f"tbf rate {rate} burst {BURST} latency 50ms"
            _run(*inside, "tc", "qdisc", "add", "dev", DEVICE, "root", *limit.split())
        yield names
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
