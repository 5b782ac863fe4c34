"""`springtide broker`: the embedded broker alone."""

import argparse
import sys

HELP = "run the embedded Kafka broker alone until Ctrl-C"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="default: the port it had before, else any free one")


def run(arguments: argparse.Namespace) -> int:
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
