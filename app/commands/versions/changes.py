"""`springtide versions pin`, `unpin` and `rollback`: what changes which versions are kept, and which one is served."""

import argparse
import sys
from typing import TYPE_CHECKING

from springtide.app.commands.command import VERSION_NAMES, Action, Report, add_json
from springtide.app.commands.forget import add_wait, submit_and_wait

if TYPE_CHECKING:
    from springtide.app.config.load import Config


def add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", help=VERSION_NAMES)
    parser.add_argument("name", help="begins with a letter, such as before-relaunch")
    add_json(parser)


def pin(config: "Config", arguments: argparse.Namespace) -> Report:
    from springtide.app.version_log.commands.pin import pin_version
    from springtide_client.format.records import version_name

    pin = pin_version(config.log.path, arguments.version, arguments.name)
    place = f"{pin.name} pins version {version_name(pin.version)}"
    return Report(pin, [f"{place}: it counts into [log] log_bytes until it is unpinned"])


def add_unpin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the pin")
    add_json(parser)


def unpin(config: "Config", arguments: argparse.Namespace) -> Report:
    from springtide.app.version_log.commands.pin import unpin_version
    from springtide_client.format.records import version_name

    pin = unpin_version(config.log.path, arguments.name)
    return Report(pin, [f"{pin.name} is removed: version {version_name(pin.version)} is kept no longer than others"])


def add_rollback_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", help=VERSION_NAMES)
    parser.add_argument(
        "--skip",
        action="store_true",
        help="do not learn the samples since then again: send them to the dead letters, with the reason `gate`",
    )
    add_wait(parser)


def rollback(config: "Config", arguments: argparse.Namespace) -> Report:
    from springtide.app.version_log.read.index import LogIndex
    from springtide_client.format.records import version_name
    from springtide_client.log.directory import LogDirectory

    index = LogIndex(LogDirectory(config.log.path))
    number = index.resolve(arguments.version)
    index.base_before(number)  # a version without a base is refused here, before a command is submitted
    if (begin := index.begin_of(number)) != (present := index.begin_of(index.numbers[-1])):
        print(
            f"version {version_name(number)} has the schema that began with {version_name(begin)}, the log goes on "
            f"with that of {version_name(present)}: only what the present schema can carry comes back; to restore all "
            "of it, start once with the configuration from then, and roll back again",
            file=sys.stderr,
        )
    body = {"version": number, "skip": arguments.skip}
    return submit_and_wait(config, "rollback", body, wait_seconds=arguments.wait)[1]


PIN = Action("keep a version restorable under a name of its own, until it is unpinned", add_pin_arguments, pin)
UNPIN = Action("remove a pin: the compactor may then delete what only that version needs", add_unpin_arguments, unpin)
ROLLBACK = Action(
    "restore an older version as a new one; the stream is read again from there", add_rollback_arguments, rollback
)
