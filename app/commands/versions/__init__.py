"""`springtide versions ACTION`: inspect, compare, verify, export, pin and roll back versions of the log.

Here are the arguments; what the actions do, which imports more, is beside this file.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from springtide.app.commands.command import VERSION_NAMES, Report, Subcommand, add_json
from springtide.app.commands.forget import add_wait


class Action(NamedTuple):
    """An action; the function of the same name is in `run_action.RUN`."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many (default: 20)")
    parser.add_argument("--before", metavar="VERSION", help="only versions before this one")
    add_json(parser)


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", nargs="?", help=f"{VERSION_NAMES} (default: latest)")
    parser.add_argument("--key", metavar="FEATURE=ID", help="show what happened to this row, such as item_id=123")
    parser.add_argument(
        "--cross",
        nargs=2,
        metavar="FIELD=ID",
        help="show what the wide part has learned of two ids together, such as user_id=7 genre=war",
    )
    parser.add_argument(
        "--limit", type=int, default=50, metavar="N", help="with --key: show the last N events (default: 50)"
    )
    add_json(parser)


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("versions", nargs=2, metavar="VERSION", help=VERSION_NAMES)
    parser.add_argument("--top", type=int, default=10, metavar="K", help="the K rows that moved most (default: 10)")
    add_json(parser)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument(
        "--format",
        choices=("safetensors", "arrow", "parquet", "torch"),
        help="safetensors: the whole model as the server's snapshot; arrow, parquet: rows; torch: plain tensors "
        "(default: by the file name's suffix, .safetensors .arrow .parquet .pt)",
    )
    parser.add_argument("--version", default="latest", help=f"{VERSION_NAMES} (default: latest)")
    parser.add_argument("--feature", metavar="NAME", help="only the rows of this feature")
    parser.add_argument("--rows", choices=("all", "none"), default="all", help="none: only the dense net")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_json(parser)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="also replay each base from the one before it")
    add_json(parser)


def add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", help=VERSION_NAMES)
    parser.add_argument("name", help="begins with a letter, such as before-relaunch")
    add_json(parser)


def add_unpin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the pin")
    add_json(parser)


def add_rollback_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", help=VERSION_NAMES)
    parser.add_argument(
        "--skip",
        action="store_true",
        help="do not learn the samples since then again: send them to the dead letters, with the reason `gate`",
    )
    add_wait(parser)


ACTIONS = {
    "list": Action("list the newest versions, oldest first", add_list_arguments),
    "show": Action(
        "show one version, with --key the history of one row, or with --cross what was learned of two ids together",
        add_show_arguments,
    ),
    "diff": Action("compare two versions: rows, moves, dense parameters, scores, stream", add_diff_arguments),
    "export": Action(
        "write a version as one file: the model snapshot, or its rows for other tools", add_export_arguments
    ),
    "verify": Action(
        "read the whole log and report what was checked and what is wrong; exit code 1 if anything is",
        add_verify_arguments,
    ),
    "pin": Action("keep a version restorable under a name of its own, until it is unpinned", add_pin_arguments),
    "unpin": Action("remove a pin: the compactor may then delete what only that version needs", add_unpin_arguments),
    "rollback": Action(
        "restore an older version as a new one; the stream is read again from there", add_rollback_arguments
    ),
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
    from springtide.app.commands.versions.run_action import RUN
    from springtide.app.config.load import load_config
    from springtide_client.errors import LogError

    config = load_config(arguments.config)
    try:
        return RUN[arguments.action](config, arguments)
    except FileNotFoundError as error:
        message = f"{error.filename} was deleted by the compactor while it was read: run the command again"
        raise LogError(message) from None


VERSIONS = Subcommand(
    "list, show, compare, export, verify, pin or roll back the versions of the log", add_arguments, run
)
