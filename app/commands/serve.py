"""`springtide serve`: the server alone."""

import argparse
from pathlib import Path

from springtide.app.commands.formatting import VERSION_NAMES

HELP = "serve the log over HTTP: embeddings, predictions, versions, the dashboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")
    parser.add_argument("--workers", type=int, help="instead of [serve] workers; SIGHUP restarts them one by one")
    parser.add_argument("--range", help='instead of [serve] range: the part of all rows to hold, such as "2/4"')
    parser.add_argument("--version", help=f"serve this version and no other: {VERSION_NAMES}")


def run(arguments: argparse.Namespace) -> int:
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
