"""`springtide serve`: the server alone."""

import argparse

HELP = "serve the log over HTTP: rows, predictions, versions, the dashboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="instead of [serve] port")


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from app.config import load_outline
    from app.errors import UserError
    from app.serving.server import serve

    outline = load_outline(arguments.config)
    try:
        config = outline.serve if arguments.port is None else replace(outline.serve, port=arguments.port)
    except ValueError as error:
        raise UserError(str(error)) from None
    serve(outline.log.path, config, log=outline.log)
    return 0
