"""The tools: `demo`, `check`, `init`, `replay`, `simulate`, `bench`."""

import argparse
import difflib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from springtide.app.commands.command import Report, Subcommand, add_json

if TYPE_CHECKING:
    from springtide.app.tools.init.sampled_rows import SampledRows
    from springtide.stream.kafka.config import KafkaConfig

KAFKA_SCHEME = "kafka://"


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="stop N seconds after readiness, and print the status"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="clicks per second (default: 3000)")
    parser.add_argument(
        "--join",
        action="store_true",
        help="impressions and clicks come in topics of their own, and are joined (in ./var/demo-join)",
    )
    parser.add_argument("--port", type=int, help="of the dashboard (default: 8000, or a free one if 8000 is taken)")
    add_json(parser, default=not sys.stdout.isatty())


def run_demo(arguments: argparse.Namespace) -> Report | int:
    from springtide.app.processes.signals import stop_on_signals

    stopping = stop_on_signals()
    from springtide.app.errors import UserError
    from springtide.app.tools.demo import Demo
    from springtide.app.tools.status_text import status_lines

    if arguments.rate is not None and not arguments.rate > 0:
        raise UserError(f"--rate must be above 0, not {arguments.rate:g}")
    path = Path(arguments.config) if arguments.config else None
    demo = Demo(path, rate=arguments.rate, port=arguments.port, debug=arguments.debug, join=arguments.join)
    status = demo.run(stopping, arguments.seconds)
    return 0 if arguments.seconds is None or status is None else Report(status, status_lines(status))


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def check(arguments: argparse.Namespace) -> Report:
    from springtide.app.config.load import load_config
    from springtide.app.tools.diagnosis import diagnose

    found = []
    for diagnosis in diagnose(load_config(arguments.config)):
        if not arguments.json:
            print(f"{diagnosis.state:<8} {diagnosis.text}", flush=True)  # at once: some take seconds
        found.append(diagnosis)
    document = [diagnosis._asdict() for diagnosis in found]
    return Report(document, (), exit_code=1 if any(diagnosis.state == "problem" for diagnosis in found) else 0)


def add_init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="or kafka://TOPIC, or kafka://HOST:PORT/TOPIC")
    parser.add_argument("--topic", help="look at this topic; the broker is that of the configuration file")
    parser.add_argument(
        "--events",
        action="append",
        default=[],
        metavar="FILE",
        help="clicks or orders that belong to these impressions, to be joined: like FILE, or with --topic the name of "
        "a topic (repeatable)",
    )
    parser.add_argument("--label", action="append", default=[], metavar="FIELD", help="what to predict (repeatable)")
    parser.add_argument("--rows", type=int, default=50_000, metavar="N", help="look at the first N (default: 50000)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the configuration there, not to stdout")


def init(arguments: argparse.Namespace) -> int:
    from springtide.app.errors import UserError
    from springtide.app.tools.init.join_proposal import leave_out, propose_join
    from springtide.app.tools.init.proposal import propose
    from springtide.app.tools.init.proposal_text import default_name, format_proposal, try_proposal

    given = arguments.file
    if (given is None) == (arguments.topic is None):
        raise UserError("name one thing to look at: FILE, kafka://HOST:PORT/TOPIC, or --topic TOPIC")
    if arguments.rows < 1:
        raise UserError(f"--rows {arguments.rows}: at least 1")
    path = arguments.write
    if path is not None and path.exists():
        raise UserError(f"--write {path}: the file exists: name another one, or remove it")
    if path is not None and not path.parent.is_dir():
        raise UserError(f"--write {path}: there is no folder {path.parent}")
    is_topic = arguments.topic is not None
    shown = _look(f"{KAFKA_SCHEME}{arguments.topic}" if is_topic else given, arguments, "clicks")
    others = [
        _look(f"{KAFKA_SCHEME}{each}" if is_topic and not each.startswith(KAFKA_SCHEME) else each, arguments, None)
        for each in arguments.events
    ]
    if others and (servers := {each.bootstrap_servers for each in (shown, *others)}) != {shown.bootstrap_servers}:
        names = ", ".join(sorted(each or "files" for each in servers))
        raise UserError(f"the topics of a join are on one broker, and these are of {names}")
    origins = [each.sample.origin for each in (shown, *others)]
    if len(set(origins)) < len(origins):
        raise UserError(f"--events: {max(origins, key=origins.count)} is named twice")
    if len({each.topic for each in others}) < len(others):
        raise UserError(f"--events: two files would be sent to the topic {others[0].topic!r}: rename one")
    events = {each.topic: each.sample for each in others}
    sample, join = shown.sample, None
    if events:
        join, sample = propose_join(shown.sample, list(events.items()), arguments.label)
    proposal = propose(sample, arguments.label if join is None else [label.name for label in join.labels])
    if join is not None:
        leave_out(proposal, join, sample)
        proposal.notes += join.notes
    text = format_proposal(
        proposal,
        sample,
        name=default_name(sample.origin),
        topic="impressions" if join is not None and shown.bootstrap_servers is None else shown.topic,
        bootstrap_servers=shown.bootstrap_servers,
        written_to="springtide.toml" if path is None else str(path),
        join=join,
        events=list(events.values()),
    )
    warnings = [f"{name} {leak}: a leak? It is left out" for name, leak in proposal.leaks.items()]
    for line in warnings + try_proposal(text, sample, events):
        print(f"warning: {line}", file=sys.stderr)
    for line in proposal.notes:
        print(f"note: {line}", file=sys.stderr)
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}: {len(proposal.roles)} features of {' and '.join(origins)}")
    return 0


class LookedAt(NamedTuple):
    """Rows of a file or a topic, and the topic and broker that they are for."""

    sample: "SampledRows"
    topic: str
    bootstrap_servers: str | None  # None: of a file


def _look(given: str, arguments: argparse.Namespace, topic_of_file: str | None) -> LookedAt:
    """Read the first rows of a file, or of a topic written kafka://HOST:PORT/TOPIC or kafka://TOPIC."""
    from springtide.app.errors import UserError, user_errors
    from springtide.app.tools.init.proposal_text import default_name
    from springtide.app.tools.init.sampled_rows import sample_file, sample_topic
    from springtide.stream.history.input_file import InputFile
    from springtide.stream.kafka.config import KafkaConfig

    if not given.startswith(KAFKA_SCHEME):
        sample = sample_file(InputFile(Path(given)), arguments.rows)
        return LookedAt(sample, topic_of_file or default_name(given), None)
    servers, _, topic = given.removeprefix(KAFKA_SCHEME).rpartition("/")
    if not topic:
        raise UserError(f"{given} names no topic: write kafka://HOST:PORT/TOPIC")
    with user_errors():
        kafka = KafkaConfig(bootstrap_servers=servers) if servers else _broker_of(arguments.config)
    return LookedAt(sample_topic(kafka, topic, arguments.rows), topic, kafka.bootstrap_servers)


def _broker_of(config_path: str | None) -> "KafkaConfig":
    """Return the broker that the configuration file names; UserError without a file."""
    from springtide.app.config.load import DEFAULT_PATH, load_config
    from springtide.app.errors import UserError

    if config_path is None and not DEFAULT_PATH.exists():
        raise UserError("which broker? Write kafka://HOST:PORT/TOPIC, or name a configuration file with --config")
    return load_config(config_path).source.kafka_config()


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--rate", type=float, metavar="N", help="messages per second (default: as fast as possible)")
    parser.add_argument("--loop", action="store_true", help="start again at the end of the file, forever")
    parser.add_argument("--limit", type=int, metavar="N", help="send at most N messages")
    parser.add_argument("--resume", action="store_true", help="go on where a killed replay has ended the topic")
    parser.add_argument("--partitions", type=int, metavar="N", help="of the topic, if it is created (default: 1)")
    parser.add_argument("--key", metavar="COLUMN", help="key the messages by a column, which also picks the partition")
    parser.add_argument("--compression", choices=["gzip", "snappy", "lz4", "zstd"], help="of the messages")


def replay(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide.app.errors import user_errors
    from springtide.app.processes.signals import stop_on_signals
    from springtide.app.tools.replay import Replay, ReplayConfig

    config = load_config(arguments.config)
    with user_errors("--"):
        replay_config = ReplayConfig(
            path=arguments.file,
            rate=arguments.rate,
            loop=arguments.loop,
            limit=arguments.limit,
            resume=arguments.resume,
            partitions=arguments.partitions,
            key=arguments.key,
            compression=arguments.compression,
        )
    stopping = stop_on_signals(grace_seconds=4.0)
    Replay(replay_config, config.source, log_path=config.log.path).run(stopping)
    return 0


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, metavar="N", help="clicks per second (default: 3000)")
    parser.add_argument("--limit", type=int, metavar="N", help="send at most N clicks")
    parser.add_argument(
        "--await-trainer",
        action="store_true",
        help="send 100 a second until the trainer has published what it learned of them: it may compile kernels first",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulated world (default: 0)")


def run_simulator(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide.app.errors import user_errors
    from springtide.app.processes.signals import stop_on_signals
    from springtide.app.tools.simulated_world import SimulatorConfig
    from springtide.app.tools.simulator import simulate

    config = load_config(arguments.config)
    settings = {"seed": arguments.seed} | ({} if arguments.rate is None else {"rate": arguments.rate})
    with user_errors("--"):
        simulator_config = SimulatorConfig(**settings)
    stopping = stop_on_signals(grace_seconds=2.0)
    simulate(
        simulator_config,
        config.source,
        config.log.path,
        stopping,
        limit=arguments.limit,
        join=config.join,
        await_trainer=arguments.await_trainer,
    )
    return 0


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="passed on: --quick, --out PATH")


def bench(arguments: argparse.Namespace) -> int:
    from springtide.app.errors import UserError

    root = Path(__file__).resolve().parents[2]
    folder = root / "tests" / "bench"
    if not folder.is_dir():
        raise UserError("bench needs a checkout of Springtide: this installation has no tests/bench")
    names = benchmarks(folder)
    if arguments.name is None:
        print("\n".join(names))
        return 0
    if arguments.name not in names:
        near = difflib.get_close_matches(arguments.name, names, n=1)
        raise UserError(
            f"no benchmark {arguments.name!r}: "
            + (f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}")
        )
    paths = [
        *(str(root / folder) for folder in ("deploy/package", "deploy/client", "")),
        os.environ.get("PYTHONPATH", ""),
    ]
    return subprocess.run(
        [sys.executable, "-P", "-m", "tests.bench", arguments.name, *arguments.rest],
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=False,
    ).returncode


def benchmarks(folder: Path) -> list[str]:
    """Return the names of the benchmarks: table/train.py is table.train, restart/restart.py is restart.

    A benchmark's docstring begins with its name; the other modules of a room support it.
    """
    found = []
    for path in sorted(folder.glob("*/*.py")):
        name = path.stem if path.stem == path.parent.name else f"{path.parent.name}.{path.stem}"
        if path.read_text(encoding="utf-8").startswith(f'"""{name}: '):
            found.append(name)
    return found


DEMO = Subcommand(
    "see it work: broker, simulated clicks, trainer, server and dashboard, in ./var/demo", add_demo_arguments, run_demo
)
CHECK = Subcommand(
    "check configuration, broker, topic, disk, port and GPU: what is wrong, and how to fix it",
    add_check_arguments,
    check,
)
INIT = Subcommand("look at a file or a topic and propose a configuration for it", add_init_arguments, init)
REPLAY = Subcommand(
    "send a CSV, TSV, JSONL or Parquet file into the topic, in the file's order", add_replay_arguments, replay
)
SIMULATE = Subcommand(
    "send simulated clicks with drifting preferences into the topic (as demo does); with [join], impressions and "
    "clicks into topics of their own",
    add_simulate_arguments,
    run_simulator,
)
BENCH = Subcommand(
    "run a benchmark of this checkout: NAME such as train.e2e; without NAME, list them", add_bench_arguments, bench
)
