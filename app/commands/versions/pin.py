"""`springtide versions pin VERSION NAME`: keep a version restorable."""

import argparse
from typing import TYPE_CHECKING

from springtide.app.commands.formatting import VERSION_NAMES

if TYPE_CHECKING:
    from springtide.app.config.load import Config

HELP = "keep a version restorable under a name of its own, until it is unpinned"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", help=VERSION_NAMES)
    parser.add_argument("name", help="begins with a letter, such as before-relaunch")


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide.app.version_log.commands.pin import pin_version
    from springtide_client.format.records import version_name

    pin = pin_version(config.log.path, arguments.version, arguments.name)
    print(f"{pin.name} pins version {version_name(pin.version)}: it counts into [log] log_bytes until it is unpinned")
    return 0
