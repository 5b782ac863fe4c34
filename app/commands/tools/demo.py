"""`springtide demo`: everything at once, on simulated clicks."""

import argparse
import json
from pathlib import Path

HELP = "see it work: broker, simulated clicks, trainer, server and dashboard, in ./var/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="stop N seconds after readiness, print the status as JSON"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="clicks per second (default: 3000)")
    parser.add_argument("--port", type=int, help="of the dashboard (default: 8000, or a free one if 8000 is taken)")


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.processes.signals import stop_on_signals

    stopping = stop_on_signals()
    from springtide.app.errors import UserError
    from springtide.app.tools.demo.demo import Demo

    if arguments.rate is not None and not arguments.rate > 0:
        raise UserError(f"--rate must be above 0, not {arguments.rate:g}")
    path = Path(arguments.config) if arguments.config else None
    demo = Demo(path, rate=arguments.rate, port=arguments.port, debug=arguments.debug)
    status = demo.run(stopping, arguments.seconds)
    if arguments.seconds is not None and status is not None:
        print(json.dumps(status), flush=True)
    return 0
