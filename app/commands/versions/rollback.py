"""`springtide versions rollback V`: the model as it was at a version, as a new version."""

import argparse
from typing import TYPE_CHECKING

from app.commands.submit import add_wait

if TYPE_CHECKING:
    from app.config.load import Config

HELP = "go back: a new version that restores an older one; the stream is read again from there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", help="-3 (three before the latest), 3.1207 or a number")
    parser.add_argument(
        "--skip",
        action="store_true",
        help="do not learn again what was learned since: it goes to the dead letters, with the reason `gate`",
    )
    add_wait(parser)


def run(config: "Config", arguments: argparse.Namespace) -> int:
    from springtide_client.log.directory import LogDirectory

    from app.commands.submit import print_result, submit_and_wait
    from app.version_log.read.index import LogIndex

    index = LogIndex(LogDirectory(config.log.path))
    number = index.resolve(arguments.version)
    index.base_before(number)  # refused here, rather than in a version
    receipt = submit_and_wait(
        config,
        "rollback",
        {"version": number, "skip": arguments.skip},
        wait_seconds=arguments.wait,
        window_samples=config.train.window_samples,
    )
    return 0 if receipt is None else print_result(receipt)
