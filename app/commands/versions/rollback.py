"""`springtide versions rollback V`: append a version that restores an older one."""

import argparse
from typing import TYPE_CHECKING

from springtide.app.commands.formatting import VERSION_NAMES
from springtide.app.commands.submit import add_wait

if TYPE_CHECKING:
    from springtide.app.config.load import Config

HELP = "restore an older version as a new one; the stream is read again from there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", help=VERSION_NAMES)
    parser.add_argument(
        "--skip",
        action="store_true",
        help="do not learn the samples since then again: send them to the dead letters, with the reason `gate`",
    )
    add_wait(parser)


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide.app.commands.submit import print_result, submit_and_wait
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
            "of it, start once with the configuration from then, and roll back again"
        )
    body = {"version": number, "skip": arguments.skip}
    status = submit_and_wait(config, "rollback", body, wait_seconds=arguments.wait)
    return 0 if status is None else print_result(status)
