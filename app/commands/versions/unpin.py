"""`springtide versions unpin NAME`: let go of a pinned version."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from springtide.app.config.load import Config

HELP = "remove a pin: the compactor may then delete what only that version needs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the pin")


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide.app.version_log.commands.pin import unpin_version
    from springtide_client.format.records import version_name

    pin = unpin_version(config.log.path, arguments.name)
    print(f"{pin.name} is removed: version {version_name(pin.version)} is kept no longer than others")
    return 0
