"""`springtide run`, `compact`, `serve` and `broker`: what runs until Ctrl-C, but the trainer."""

import argparse
import sys
from pathlib import Path

from springtide.app.commands.command import VERSION_NAMES, Subcommand

CHECK_SECONDS = 0.1


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.processes.signals import stop_on_signals

    stopping = stop_on_signals()
    from springtide.app.config.load import load_config
    from springtide.app.processes.supervisor import BrokerSupervisor, ChildSpec, Supervisor
    from springtide.app.serving.server.address import wait_until_free as wait_for_port
    from springtide.app.version_log.write.epoch import make_log_folder
    from springtide.app.version_log.write.trainer_lock import wait_until_free as wait_for_lock

    config = load_config(arguments.config, overrides={"serve": {"port": arguments.port}})
    wait_for_lock(config.log.path)
    wait_for_port(config.serve)
    make_log_folder(config.log.path)
    options = ["--config", str(config.path), *(["--debug"] if arguments.debug else [])]
    port = [] if arguments.port is None else ["--port", str(arguments.port)]
    children = [ChildSpec("train", ["train", *options]), ChildSpec("serve", ["serve", *options, *port])]
    # the broker stops last: the trainer's last version waits until dead letters are acknowledged
    with (
        BrokerSupervisor(config.source, config.log.path) as broker,
        Supervisor(children, on_line=print_line) as supervisor,
    ):
        while not stopping.wait(CHECK_SECONDS):
            broker.restart_if_dead()
            supervisor.restart_dead()
    return 0


def print_line(name: str, line: str) -> None:
    """Print a child's output line after the child's name."""
    sys.stderr.write(f"{name:>6} | {line}\n")
    sys.stderr.flush()


def add_compact_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="FOLDER", help="the log's folder, instead of [log] path")
    parser.add_argument("--once", action="store_true", help="write one base now and exit")


def run_compactor(arguments: argparse.Namespace) -> int:
    from springtide.app.processes.tuning import tune_process

    tune_process()
    from springtide.app.config.load import load_config
    from springtide.app.processes.signals import stop_on_signals
    from springtide.app.processes.tuning import yield_to_others
    from springtide.app.version_log.compact.compactor import Compactor

    yield_to_others()
    stopping = stop_on_signals()
    config = load_config(arguments.config, overrides={"log": {"path": arguments.log}})
    compactor = Compactor(config.log, window_samples=config.train.window_samples)
    if arguments.once:
        compactor.compact()
    else:
        compactor.run(stopping)
    return 0


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")
    parser.add_argument("--workers", type=int, help="instead of [serve] workers; SIGHUP restarts them one by one")
    parser.add_argument("--range", help='instead of [serve] range: the part of all rows to hold, such as "2/4"')
    parser.add_argument("--version", help=f"serve this version and no other: {VERSION_NAMES}")


def run_server(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide.app.processes.tuning import tune_process

    tune_process()
    from springtide.app.serving.server.serve import serve

    options = {"port": arguments.port, "workers": arguments.workers, "range": arguments.range}
    config = load_config(arguments.config, overrides={"serve": options})
    version = None if arguments.version is None else find_version(config.log.path, arguments.version)
    serve(config.log.path, config.serve, log=config.log, version=version)
    return 0


def find_version(log_path: Path, name: str) -> int:
    """Return the number of a version that can be rebuilt; UserError if there is none of this name."""
    from springtide.app.version_log.read.index import LogIndex
    from springtide_client.log.directory import LogDirectory

    index = LogIndex(LogDirectory(log_path))
    number = index.resolve(name)
    index.base_before(number)
    return number


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="default: the port it had before, else any free one")


def run_broker(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide.app.errors import UserError
    from springtide.app.processes.signals import stop_on_signals
    from springtide.stream.broker.embedded import EmbeddedBroker
    from springtide.stream.errors import EmbeddedBrokerError

    config = load_config(arguments.config)
    if not config.source.uses_embedded_broker:
        raise UserError(
            f"[source] bootstrap_servers = {config.source.bootstrap_servers!r} names a broker of your own: "
            "remove the key to use the embedded one"
        )
    stopping = stop_on_signals()
    with EmbeddedBroker(config.log.path, arguments.port) as broker:
        print(f"embedded broker at {broker.address}, in memory only; Ctrl-C stops it", file=sys.stderr)
        while not stopping.wait(0.2):
            if not broker.alive:
                raise EmbeddedBrokerError(f"the embedded broker died: see {config.log.path / 'broker.err'}")
    return 0


RUN = Subcommand(
    "run everything until Ctrl-C: the embedded broker if no other is named, trainer, compactor, server",
    add_run_arguments,
    run,
)
COMPACT = Subcommand(
    "write the log's next bases and delete what they cover (train runs this itself, unless --no-compact)",
    add_compact_arguments,
    run_compactor,
)
SERVE = Subcommand(
    "serve the log over HTTP: embeddings, predictions, versions, the dashboard", add_serve_arguments, run_server
)
BROKER = Subcommand("run the embedded Kafka broker alone until Ctrl-C", add_broker_arguments, run_broker)
