"""`springtide versions ACTION`: inspect, compare, verify, export, pin and roll back versions of the log."""

import argparse
import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from springtide.app.config.load import Config

HELP = "list, show, compare, export, verify, pin or roll back the versions of the log"
ACTIONS = ("list", "show", "diff", "export", "verify", "pin", "unpin", "rollback")


class Action(Protocol):
    """The interface of a module app/commands/versions/<action>.py."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, config: "Config", arguments: argparse.Namespace) -> int: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name in ACTIONS:
        action = _action(name)
        action.add_arguments(actions.add_parser(name, help=action.HELP, description=action.HELP))
    for child in actions.choices.values():
        # suppressed, so that it does not overwrite a --config given before the action
        child.add_argument(
            "--config", metavar="FILE", default=argparse.SUPPRESS, help="the configuration (default: ./springtide.toml)"
        )


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.config.load import load_config
    from springtide_client.errors import LogError

    config = load_config(arguments.config)
    try:
        return _action(arguments.action).run(config, arguments)
    except FileNotFoundError as error:
        message = f"{error.filename} was deleted by the compactor while it was read: run the command again"
        raise LogError(message) from None


def _action(name: str) -> Action:
    module: Action = importlib.import_module(f"springtide.app.commands.versions.{name}")
    return module
