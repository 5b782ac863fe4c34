"""`springtide run`: broker if embedded, trainer with its merger, server; all of it until Ctrl-C."""

import argparse
import sys

HELP = "run everything: the embedded broker if there is no other, trainer, merger, server"

CHECK_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")


def run(arguments: argparse.Namespace) -> int:
    from app.processes.signals import stop_on_signals

    stopping = stop_on_signals()
    from app.config.load import load_light_config
    from app.processes.broker_supervisor import BrokerSupervisor
    from app.processes.supervisor import ChildSpec, Supervisor

    outline = load_light_config(arguments.config)
    config = ["--config", str(outline.path)]
    debug = ["--debug"] if arguments.debug else []
    port = [] if arguments.port is None else ["--port", str(arguments.port)]
    children = [ChildSpec("train", ["train", *config, *debug]), ChildSpec("serve", ["serve", *config, *port, *debug])]
    # the broker is stopped last: the trainer's last version waits for dead letters to be acknowledged
    with BrokerSupervisor(outline) as keeper, Supervisor(children, say=print_line) as supervisor:
        while not stopping.wait(CHECK_SECONDS):
            keeper.restart_if_dead()
            supervisor.restart_dead()
    return 0


def print_line(name: str, line: str) -> None:
    """A child's line, under its name."""
    sys.stderr.write(f"{name:>6} | {line}\n")
    sys.stderr.flush()
