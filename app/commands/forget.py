"""`springtide forget --key user_id=123`: erase ids from the model and from every follower."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from springtide.app.commands.submit import add_wait

if TYPE_CHECKING:
    from springtide.app.config.load import Config
    from springtide.app.version_log.commands.status import CommandStatus

HELP = "erase ids from the model and from every follower"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key", action="append", default=[], metavar="FEATURE=ID", help="an id to erase; may be given several times"
    )
    parser.add_argument("--file", type=Path, help="a file with one FEATURE=ID per line")
    add_wait(parser)


def run(arguments: argparse.Namespace) -> int:
    from springtide.app.commands.submit import print_result, submit_and_wait
    from springtide.app.config.load import load_config
    from springtide.app.errors import UserError
    from springtide.app.version_log.trainer_status import has_log

    config = load_config(arguments.config)
    keys = read_keys(config, arguments.key, arguments.file)
    if not has_log(config.log.path):
        raise UserError(f"there is no log in {config.log.path} yet: nothing was learned, so there is nothing to forget")
    status = submit_and_wait(config, "forget", {"keys": keys}, wait_seconds=arguments.wait)
    if status is None:
        return 0
    code = print_result(status)
    if code == 0:
        print_remaining_files(config, status)
    return code


def read_keys(config: "Config", given: list[str], file: Path | None) -> list[dict[str, Any]]:
    """Return the keys of the command line and of the file; UserError names the malformed one."""
    from springtide.app.errors import UserError

    given_keys = [(f"--key {text}", text) for text in given]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--file {file} cannot be read: {error}") from None
        given_keys += [(f"{file}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not given_keys:
        raise UserError("nothing to forget: give ids with --key FEATURE=ID, or in a --file")
    keys = []
    for where, text in given_keys:
        feature, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{where}: write FEATURE=ID, such as user_id=123")
        if not value:  # as of a shell variable that is not set
            raise UserError(f"{where}: no id after =; where the empty text is an id, send it to POST /v1/forget")
        if feature not in config.schema.features:
            raise UserError(f"{where}: no feature {feature!r}, only {', '.join(config.schema.features)}")
        keys.append({"feature": feature, "id": value})
    return keys


def print_remaining_files(config: "Config", status: "CommandStatus") -> None:
    """Print for the first erased ids which file of the log still holds them, and until when."""
    from springtide.app.version_log.commands.status import erased_keys_report
    from springtide_client.format.records import version_name

    report = erased_keys_report(config.log, config.schema, status)
    for key in report:
        since = f" since version {version_name(key.erased_in)}" if key.erased_in else ""
        print(f"{key.feature}={key.id}: erased{since}; ", end="")
        if key.oldest_file is None:
            print("no file of the log holds it")
        else:
            print(f"the oldest file that still holds it is {key.oldest_file}, which is deleted {key.removal_condition}")
    if (num_more := len(status.entry.keys if status.entry else ()) - len(report)) > 0:
        print(f"and {num_more:,} more: `springtide versions show --key FEATURE=ID` reports on each")
