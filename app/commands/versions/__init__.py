"""`springtide versions`: looks at the log, compares versions, verifies it, takes a model out of it."""

import argparse
import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from app.config.load import Config

HELP = "list, show, compare, export or verify the versions in the log; go back to one"
ACTIONS = ("list", "show", "diff", "export", "verify", "rollback")


class Action(Protocol):
    """What a module app/commands/versions/<action>.py offers."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, config: "Config", arguments: argparse.Namespace) -> int: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name in ACTIONS:
        action = _action(name)
        action.add_arguments(actions.add_parser(name, help=action.HELP, description=action.HELP))
    for child in actions.choices.values():
        # absent here, it leaves alone what stood before the action
        child.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="as every command has it")


def run(arguments: argparse.Namespace) -> int:
    from springtide_client.errors import LogError

    from app.config.load import load_config

    config = load_config(arguments.config)
    try:
        return _action(arguments.action).run(config, arguments)
    except FileNotFoundError as error:
        message = f"{error.filename} was deleted by the compactor while it was read: run the command again"
        raise LogError(message) from None


def _action(name: str) -> Action:
    module: Action = importlib.import_module(f"app.commands.versions.{name}")
    return module
