"""`springtide serve`: the server alone."""

import argparse

HELP = "serve the log over HTTP: rows, predictions, versions, the dashboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")
    parser.add_argument("--workers", type=int, help="instead of [serve] workers; SIGHUP restarts them one by one")


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from app.config.load import load_light_config
    from app.errors import UserError
    from app.processes.tuning import tune_process

    tune_process()
    from app.serving.server.serve import serve

    outline = load_light_config(arguments.config)
    try:
        told = {name: getattr(arguments, name) for name in ("port", "workers")}
        config = replace(outline.serve, **{name: value for name, value in told.items() if value is not None})
    except ValueError as error:
        raise UserError(str(error)) from None
    serve(outline.log.path, config, log=outline.log)
    return 0
