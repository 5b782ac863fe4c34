"""`springtide serve`: the server alone."""

import argparse

HELP = "serve the log over HTTP: embeddings, predictions, versions, the dashboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")
    parser.add_argument("--workers", type=int, help="instead of [serve] workers; SIGHUP restarts them one by one")


def run(arguments: argparse.Namespace) -> int:
    from app.config.load import load_config
    from app.processes.tuning import tune_process

    tune_process()
    from app.serving.server.serve import serve

    options = {"port": arguments.port, "workers": arguments.workers}
    config = load_config(arguments.config, overrides={"serve": options})
    serve(config.log.path, config.serve, log=config.log)
    return 0
