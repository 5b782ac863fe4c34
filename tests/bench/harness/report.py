"""What every benchmark shares: arguments, alternating repeats, cases, and the report as text and JSON."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from springtide.app.processes.tuning import keep_freed_memory, tune_process

PEERS = Path(os.environ.get("SPRINGTIDE_BENCH_PEERS", "~/.cache/springtide-bench")).expanduser()
DATA = Path(os.environ.get("SPRINGTIDE_BENCH_DATA", Path(__file__).parents[4] / "shared" / "data")).expanduser()


@dataclass
class Case:
    """One comparison: our rates and each peer's, one value per repeat; higher is better.

    `contest`: where the runs overlap, "ahead" needs 10 % more than noise; otherwise, and where less than a peer's rate
    is enough, the ratio alone decides.
    """

    case: str
    unit: str
    ours: list[float]
    peers: dict[str, list[float]]
    needed: float | None = None
    limit: float | None = None  # physical limit, in the same unit
    contest: bool = True
    ratio: float | None = field(init=False, default=None)
    ahead: bool | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.contest = self.contest and (self.needed is None or self.needed >= 1)
        if not self.peers:
            return
        best = max(self.peers.values(), key=statistics.median)
        self.ratio = statistics.median(self.ours) / statistics.median(best)
        if self.needed is not None:
            apart = not self.contest or min(self.ours) > max(best)
            self.ahead = self.ratio >= (self.needed if apart else max(self.needed, 1.10))


def use_trainer_process_settings() -> None:
    """Restart this process with the settings of `springtide train`, which OpenMP reads only when torch is imported."""
    if "GOMP_SPINCOUNT" not in os.environ:
        tune_process()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    keep_freed_memory()


def arguments(description: str | None) -> argparse.Namespace:
    """Parse `--quick` (a short run whose figures mean nothing), `--out PATH` (JSON) and `--peers DIR`."""
    return argument_parser(description).parse_args()


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser, for benchmarks with more arguments."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="seconds instead of a minute; the figures mean nothing")
    parser.add_argument("--out", type=Path, help="write the result as JSON here")
    parser.add_argument("--peers", type=Path, default=PEERS, help="where tests/bench/peers/install.sh put its venvs")
    return parser


def alternate(contenders: dict[str, Callable[[], float]], *, repeats: int) -> dict[str, list[float]]:
    """Run the contenders in turn, A/B/A/B, after one warm-up each; return the rates of each."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(repeats):
        for name, run in contenders.items():
            rates[name].append(run())
    return rates


def timed(work: Callable[[], object], amount: float) -> float:
    """Return the amount per second of one call."""
    start = time.perf_counter()
    work()
    return amount / (time.perf_counter() - start)


def against_each(
    case: str, unit: str, rates: Mapping[str, list[float]], needed: Mapping[str, float], limit: float | None = None
) -> list[Case]:
    """Return a case for each peer; `rates` has "ours" too. `needed`: by peer."""
    return [
        Case(f"{case}, against {name}", unit, rates["ours"], {name: found}, needed=needed.get(name), limit=limit)
        for name, found in rates.items()
        if name != "ours"
    ]


def report(
    benchmark: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    *,
    packages: Sequence[str],
    peers: Mapping[str, str] | None = None,
) -> None:
    """Print machine, versions and a line per case; write the same as JSON to `--out`.

    `packages`: of this interpreter; `peers`: versions of contenders with interpreters of their own.
    """
    document = describe_run(benchmark, options, packages=packages, peers=peers)
    for case in cases:
        print(describe_case(case))
    save(options, document | {"cases": [asdict(case) for case in cases]})


def save(options: argparse.Namespace, document: Mapping[str, object]) -> None:
    """Write a result as JSON to `--out`, if it was given."""
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")


def save_lines(options: argparse.Namespace, cases: Sequence[Case]) -> None:
    """Write the cases as a Markdown list beside `--out`, if it was given."""
    if options.out:
        options.out.with_suffix(".md").write_text("".join(f"- {describe_case(case)}\n" for case in cases))


def describe_run(
    benchmark: str, options: argparse.Namespace, *, packages: Sequence[str], peers: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Print and return the machine, the commit and the versions."""
    machine = describe_machine()
    commit = describe_commit()
    versions = {"python": platform.python_version()} | {name: package_version(name) for name in packages}
    versions |= peers or {}
    cpu, cores, ram, system, gpu = (machine[key] for key in ("cpu", "cores", "ram_gib", "os", "gpu"))
    print(f"# {benchmark}{' (quick: the figures mean nothing)' if options.quick else ''}")
    print(f"machine: {cpu}, {cores} cores, {ram} GiB, {system}; GPU: {gpu}")
    print(f"commit: {commit}; " + ", ".join(f"{name} {number}" for name, number in versions.items()), flush=True)
    return {"benchmark": benchmark, "machine": machine, "commit": commit, "versions": versions, "quick": options.quick}


def describe_case(case: Case) -> str:
    """Return one line: ours and each peer (median, min, max), ratio, needed, ahead, share of the limit."""

    def spread(rates: list[float]) -> str:
        digits = ",.0f" if min(rates) >= 1000 else ".4g"
        return f"{statistics.median(rates):{digits}} ({min(rates):{digits}}..{max(rates):{digits}})"

    parts = [f"{case.case} [{case.unit}]: ours {spread(case.ours)}"]
    parts += [f"{name} {spread(rates)}" for name, rates in case.peers.items()]
    if case.ratio is not None:
        parts.append(f"ratio {case.ratio:.2f}")
    if case.needed is not None:
        parts.append(f"needed {case.needed:.4g}, ahead {'yes' if case.ahead else 'no'}")
    if case.limit:
        parts.append(f"{100 * statistics.median(case.ours) / case.limit:.0f} % of the limit {case.limit:,.0f}")
    return "; ".join(parts)


def describe_machine() -> dict[str, object]:
    """Return CPU model, cores, RAM, operating system and GPU."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or "none"
    return {"cpu": cpu, "cores": os.cpu_count(), "ram_gib": round(ram, 1), "os": platform.platform(), "gpu": gpu}


def describe_commit() -> str:
    """Return the short commit hash, with "+dirty" for a changed tree; without git SPRINGTIDE_COMMIT."""
    git = "git", "-C", str(Path(__file__).parent)
    commit = output_of(*git, "rev-parse", "--short", "HEAD")
    if commit is None:
        return os.environ.get("SPRINGTIDE_COMMIT", "unknown")
    return commit + ("+dirty" if output_of(*git, "status", "--porcelain") else "")


def output_of(*command: str) -> str | None:
    """Return what a program prints; None if there is no such program, or if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def package_version(name: str) -> str:
    """Return the installed version, or "missing"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def fail(message: str) -> None:
    """Exit because results differ: no rate is printed."""
    sys.exit(f"mismatch, nothing timed: {message}")
