"""`springtide run`: the embedded broker if no other is named, the trainer with its compactor, the server."""

import argparse
import sys

HELP = "run everything until Ctrl-C: the embedded broker if no other is named, trainer, compactor, server"

CHECK_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.processes.signals import stop_on_signals

    stopping = stop_on_signals()
    from springtide.app.config.load import load_config
    from springtide.app.processes.broker_supervisor import BrokerSupervisor
    from springtide.app.processes.supervisor import ChildSpec, Supervisor
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
