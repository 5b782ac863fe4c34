"""Two hosts with a rank each, by torchrun's rendezvous; the link between them is cut, delayed and made narrow.

python -m tests.torture.ranks.hosts --rounds 2

The hosts are network namespaces: it needs root, `ip` and `tc`, and says so where they are missing. Between them are TAP
devices and a process that forwards frames, later if asked; where there are none, a veth pair that is never delayed.
Broker and log are on the first host; the second one reads both, the log by a shared disk.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.bench.harness.hosts import ADDRESSES, DEVICE, two_hosts
from tests.support.ports import free_port
from tests.support.processes import our_environment
from tests.support.waiting import wait_until
from tests.torture.cluster.site import is_running
from tests.torture.ranks.comparison import Comparison
from tests.torture.ranks.delayed_link import two_delayed_hosts
from tests.torture.ranks.delayed_link import why_not as why_no_delay
from tests.torture.ranks.site import TIMEOUT_SECONDS, RankSite

LONG_SECONDS = 240.0  # torchrun itself waits for hosts that are silent
# with torchrun's own store a host that was replaced would never find the others again
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": DEVICE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
CUT_SECONDS = TIMEOUT_SECONDS + 4.0
DELAY_SECONDS = 0.05  # each way


class Hosts:
    """Keeps a torchrun on each host, as a service manager does. Runs in the first host's namespace."""

    def __init__(self, site: RankSite, second: str) -> None:
        self._site, self._second, self._port, self._run = site, second, free_port(), 0
        self._agents: list[subprocess.Popen[bytes] | None] = [None, None]
        self.num_agents = 0

    def keep(self) -> None:
        """Start the torchruns that have ended."""
        for host, agent in enumerate(self._agents):
            if agent is None or agent.poll() is not None:
                self._agents[host] = self._start(host)
                self.num_agents += 1

    def _start(self, host: int) -> subprocess.Popen[bytes]:
        inside = ["ip", "netns", "exec", self._second] if host else []
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        torchrun += [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"{ADDRESSES[0]}:{self._port}",
            "--rdzv-id",
            "torture",
        ]
        # no name server knows the hosts: torchrun is told where the store is
        torchrun += ["--rdzv-conf", f"is_host={int(host == 0)}"]
        torchrun += ["--local-addr", ADDRESSES[host], "--max-restarts", "1000", "--monitor-interval", "0.2"]
        command = [*inside, *torchrun, "-m", "springtide", "train", "--no-compact", "--config", str(self._site.config)]
        with (self._site.folder / f"host-{host}.out").open("ab") as out:
            return subprocess.Popen(command, env=our_environment(**ENVIRONMENT), stdout=out, stderr=out)

    def ranks(self) -> list[int]:
        """Return the processes that train."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            is_rank = b"train" in words and str(self._site.config).encode() in words
            if is_rank and b"torch.distributed.run" not in words:
                found.append(int(path.parent.name))
        return sorted(pid for pid in found if is_running(pid))

    def link(self, *words: str) -> None:
        """Run ip or tc on both hosts."""
        for inside in ([], ["ip", "netns", "exec", self._second]):
            subprocess.run([*inside, *words], check=True, capture_output=True)

    def close(self) -> None:
        """Stop all; what does not end in time is killed."""
        running = [agent for agent in self._agents if agent is not None and agent.poll() is None]
        for agent in running:
            agent.send_signal(signal.SIGTERM)
        for agent in running:
            try:
                agent.wait(60)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for pid in self.ranks():
            os.kill(pid, signal.SIGKILL)


class HostsTorture:
    """Every fault is followed by records that must be learned, and by a comparison."""

    def __init__(self, site: RankSite, second: str, seed: int, delay_file: Path | None) -> None:
        """`delay_file`: where the link's delay is written; None if it cannot be delayed."""
        self._delay_file = delay_file
        self.site, self.hosts, self.comparison = site, Hosts(site, second), Comparison(site)
        self._draw, self.done, self.began = random.Random(seed), Counter[str](), time.monotonic()

    def run(self, num_rounds: int) -> None:
        """Inject every fault in each round; at the end one process learns the rest."""
        self.learn()
        for _ in range(num_rounds):
            for fault in (self.cut, self.delay, self.narrow, self.kill_rank, self.kill_first, self.kill_second):
                what = fault()
                self.done[fault.__name__] += 1
                self.comparison.compare()
                print(f"{time.monotonic() - self.began:.0f} s: {what}", flush=True)
        self.hosts.close()
        command = [sys.executable, "-m", "springtide", "train", "--no-compact", "--until-end", "--config"]
        subprocess.run([*command, str(self.site.config)], env=our_environment(), check=True, capture_output=True)
        contents = self.comparison.compare_at_end()
        figures = {
            "seconds": round(time.monotonic() - self.began),
            "faults": dict(self.done),
            "torchruns": self.hosts.num_agents,
            "epochs": contents.head.number >> 32,
            "samples": contents.meta.samples_trained,
            "comparisons_of_the_log": self.comparison.num_logs,
            "versions_compared_by_the_follower": self.site.watcher.num_compared,
            "differences": 0,
        }
        print(json.dumps(figures), flush=True)

    def learn(self) -> float:
        """Send records; return how long it took until all are in a published version."""
        for _ in range(5):
            self.site.produce(self._draw.randrange(50, 200), self._draw.randrange(self.site.partitions))
        began = time.monotonic()

        def is_learned() -> bool:
            self.hosts.keep()
            view = self.site.watcher.follower.view
            ends = self.site.sent.ends()
            at = {} if view is None else {name: position["offset"] for name, position in view.meta.positions.items()}
            return all(at.get(f"clicks/{partition}", 0) == end for partition, end in ends.items())

        wait_until(is_learned, self.site.output, seconds=LONG_SECONDS)
        return time.monotonic() - began

    def cut(self) -> str:
        """No packet passes for longer than the timeout: both ranks end by themselves."""
        before = self.hosts.ranks()
        subprocess.run(self._on_second("ip", "link", "set", DEVICE, "down"), check=True, capture_output=True)
        began = time.monotonic()
        wait_until(lambda: not set(before) & set(self.hosts.ranks()), self.site.output, seconds=10 * TIMEOUT_SECONDS)
        ended = time.monotonic() - began
        time.sleep(max(0.0, CUT_SECONDS - ended))
        subprocess.run(self._on_second("ip", "link", "set", DEVICE, "up"), check=True, capture_output=True)
        seconds = self.learn()
        return f"link cut: both ranks had ended after {ended:.1f} s; {seconds:.1f} s after the joining all was learned"

    def delay(self) -> str:
        if self._delay_file is None:
            return f"SKIPPED: the link cannot be delayed: {why_no_delay()}"
        self._delay_file.write_text(str(DELAY_SECONDS))
        seconds = self.learn()
        self._delay_file.write_text("0")
        return f"link with {1000 * DELAY_SECONDS:g} ms each way: all learned after {seconds:.1f} s"

    def narrow(self) -> str:
        seconds = self._shaped("tbf", "rate", "10mbit", "burst", "64kb", "latency", "100ms")
        return f"link of 10 Mbit/s: all learned after {seconds:.1f} s"

    def kill_rank(self) -> str:
        os.kill(self._draw.choice(self.hosts.ranks()), signal.SIGKILL)
        return f"a rank killed: all learned after {self.learn():.1f} s"

    def kill_first(self) -> str:
        """The first host dies, with the store of torchrun's rendezvous."""
        return self._kill_host(0)

    def kill_second(self) -> str:
        return self._kill_host(1)

    def _kill_host(self, host: int) -> str:
        """Kill one host's torchrun and its rank, as if the host had died; the other's rank ends by itself."""
        agent = self.hosts._agents[host]
        assert agent is not None
        own = list(map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()))
        others = set(self.hosts.ranks()) - set(own)
        number = rank_of(next(pid for pid in own if pid in self.hosts.ranks()))
        began = time.monotonic()
        for pid in (agent.pid, *own):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not others & set(self.hosts.ranks()), self.site.output, seconds=10 * TIMEOUT_SECONDS)
        ended = time.monotonic() - began
        learned = self.learn()
        return (
            f"host {host} killed, with rank {number}{' and the store' if host == 0 else ''}: the other's rank ended "
            f"after {ended:.1f} s, all learned {learned:.1f} s later"
        )

    def _shaped(self, *discipline: str) -> float:
        self.hosts.link("tc", "qdisc", "replace", "dev", DEVICE, "root", *discipline)
        seconds = self.learn()
        self.hosts.link("tc", "qdisc", "delete", "dev", DEVICE, "root")
        return seconds

    def _on_second(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.hosts._second, *words]


def rank_of(pid: int) -> int:
    """Return which rank a process is."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return int(next(line.removeprefix(b"RANK=") for line in environment if line.startswith(b"RANK=")))


def why_not() -> str:
    """Return why there can be no network namespaces here; "" if there can."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    name = f"springtide-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return tried.stderr.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", help="name of the second host: this process is on the first one")
    parser.add_argument("--delay-file", type=Path, help="where the delay of the link is written")
    options = parser.parse_args()
    if options.inside is None:
        if reason := why_not():
            print(f"SKIPPED: the torture of two hosts needs network namespaces: {reason}")
            return
        delay_file = None if why_no_delay() else Path(tempfile.mkdtemp(prefix="link-")) / "delay"
        with two_hosts("1gbit") if delay_file is None else two_delayed_hosts(delay_file) as (first, second):
            command = ["ip", "netns", "exec", first, sys.executable, "-m", "tests.torture.ranks.hosts"]
            command += ["--rounds", str(options.rounds), "--seed", str(options.seed), "--inside", second]
            command += [] if delay_file is None else ["--delay-file", str(delay_file)]
            code = subprocess.run(command).returncode
        if delay_file is not None:
            shutil.rmtree(delay_file.parent)
        sys.exit(code)
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    site = RankSite(folder, options.seed, address=ADDRESSES[0])
    torture = HostsTorture(site, options.inside, options.seed, options.delay_file)
    try:
        torture.run(options.rounds)
    finally:
        torture.hosts.close()
        site.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
