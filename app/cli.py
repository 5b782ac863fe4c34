"""The `springtide` command: runs a subcommand, and turns its errors into one line and an exit code.

Imports nothing heavy: each command imports what it needs when it runs.
"""

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from springtide.app.commands import processes, tools
from springtide.app.commands.command import print_report
from springtide.app.commands.evaluate import EVALUATE
from springtide.app.commands.forget import FORGET
from springtide.app.commands.train import TRAIN
from springtide.app.commands.versions import VERSIONS
from springtide.app.errors import UserError
from springtide.app.processes.signals import die_with_supervisor
from springtide.app.processes.stderr import report_error

COMMANDS = {  # in the order of --help
    "demo": tools.DEMO,
    "run": processes.RUN,
    "train": TRAIN,
    "compact": processes.COMPACT,
    "serve": processes.SERVE,
    "broker": processes.BROKER,
    "check": tools.CHECK,
    "init": tools.INIT,
    "evaluate": EVALUATE,
    "replay": tools.REPLAY,
    "simulate": tools.SIMULATE,
    "forget": FORGET,
    "versions": VERSIONS,
    "bench": tools.BENCH,
}
NEW_NAMES = {"merge": "compact"}  # former name -> what to suggest


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that says how to get help."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what no parser of a command knows, so that the error names that command's help."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see: {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 runtime error, 2 usage or configuration error."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]  # allowed anywhere
    try:
        arguments = build_parser().parse_args(check_command(argv))
        die_with_supervisor()
        set_up_logging(debug)
        outcome = COMMANDS[arguments.command].run(arguments)
        return outcome if isinstance(outcome, int) else print_report(outcome, as_json=getattr(arguments, "json", False))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of our output is gone: Python must not flush the rest into the broken pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        return report_error(error)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    description = "Trains a recommender continuously from a Kafka click stream, and serves it while it learns."
    parser = Parser(prog="springtide", description=description)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, command in COMMANDS.items():
        child = subparsers.add_parser(name, help=command.help, description=command.help)
        child.add_argument("--config", metavar="FILE", help="configuration file (default: ./springtide.toml)")
        child.add_argument("--debug", action="store_true", help="show the traceback of errors, and debug logs")
        command.add_arguments(child)
    return parser


def check_command(argv: list[str]) -> list[str]:
    """Return the arguments unchanged; UserError names the nearest command if the given one is unknown."""
    first = next((word for word in argv if not word.startswith("-")), None)
    if argv and first == argv[0] and first not in COMMANDS:
        near = [NEW_NAMES[first]] if first in NEW_NAMES else difflib.get_close_matches(first, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(COMMANDS)}"
        raise UserError(f"no command {first!r}: {hint}")
    return argv


def set_up_logging(debug: bool) -> None:
    """Write log events to stderr, one line each."""
    from springtide.app.processes.stderr import LogFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    for noisy in ("kafka", "uvicorn", "uvicorn.access", "numba", "asyncio", "httpx", "torch"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # our own status reports an unreachable broker once; the client library would log it several times a second
    logging.getLogger("kafka").setLevel(logging.INFO if debug else logging.CRITICAL)
