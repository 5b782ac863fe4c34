"""`springtide versions ACTION`: inspect, compare, verify, export, pin and roll back versions of the log."""

import argparse

from springtide.app.commands.command import Report, Subcommand
from springtide.app.commands.versions.changes import PIN, ROLLBACK, UNPIN
from springtide.app.commands.versions.diff import DIFF
from springtide.app.commands.versions.overview import EXPORT, LIST, VERIFY
from springtide.app.commands.versions.show import SHOW

ACTIONS = {
    "list": LIST,
    "show": SHOW,
    "diff": DIFF,
    "export": EXPORT,
    "verify": VERIFY,
    "pin": PIN,
    "unpin": UNPIN,
    "rollback": ROLLBACK,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, action in ACTIONS.items():
        child = actions.add_parser(name, help=action.help, description=action.help)
        action.add_arguments(child)
        # suppressed, so that it does not overwrite a --config given before the action
        child.add_argument(
            "--config", metavar="FILE", default=argparse.SUPPRESS, help="the configuration (default: ./springtide.toml)"
        )


def run(arguments: argparse.Namespace) -> Report:
    from springtide.app.config.load import load_config
    from springtide_client.errors import LogError

    config = load_config(arguments.config)
    try:
        return ACTIONS[arguments.action].run(config, arguments)
    except FileNotFoundError as error:
        message = f"{error.filename} was deleted by the compactor while it was read: run the command again"
        raise LogError(message) from None


VERSIONS = Subcommand(
    "list, show, compare, export, verify, pin or roll back the versions of the log", add_arguments, run
)
