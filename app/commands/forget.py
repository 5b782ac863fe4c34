"""`springtide forget --key user_id=123`: ids gone from the model and every follower, with a receipt."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.submit import add_wait

if TYPE_CHECKING:
    from app.config.load import LightConfig
    from app.version_log.commands.status import CommandStatus

HELP = "forget ids: gone from the model and from every follower"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", action="append", default=[], metavar="FEATURE=ID", help="may be given several times")
    parser.add_argument("--file", type=Path, help="a file with a FEATURE=ID in each line")
    add_wait(parser)


def run(arguments: argparse.Namespace) -> int:
    from app.commands.submit import print_result, submit_and_wait
    from app.config.load import load_light_config
    from app.errors import UserError
    from app.version_log.compact.compactor import WINDOW_SAMPLES
    from app.version_log.trainer_status import read_status

    outline = load_light_config(arguments.config)
    keys = read_keys(outline, arguments.key, arguments.file)
    if read_status(outline.log.path) is None:
        raise UserError(f"there is no log in {outline.log.path} yet: nothing was learned, so nothing can be forgotten")
    receipt = submit_and_wait(
        outline, "forget", {"keys": keys}, wait_seconds=arguments.wait, window_samples=WINDOW_SAMPLES
    )
    if receipt is None:
        return 0
    code = print_result(receipt)
    if code == 0:
        print_remaining_files(outline, receipt)
    return code


def read_keys(outline: "LightConfig", given: list[str], file: Path | None) -> list[dict[str, Any]]:
    """The keys of the command line and of the file; UserError names the one that is none."""
    from app.errors import UserError

    named = [(f"--key {text}", text) for text in given]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--file {file} cannot be read: {error}") from None
        named += [(f"{file}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not named:
        raise UserError("nothing to forget: name ids with --key FEATURE=ID, or in a --file")
    keys = []
    for where, text in named:
        feature, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{where}: write FEATURE=ID, such as user_id=123")
        if feature not in outline.schema.features:
            raise UserError(f"{where}: no feature {feature!r}, only {', '.join(outline.schema.features)}")
        keys.append({"feature": feature, "id": value})
    return keys


def print_remaining_files(outline: "LightConfig", receipt: "CommandStatus") -> None:
    """Where the first of the ids still lie on the disk, and until when."""
    from springtide_client.format.records import version_name

    from app.version_log.commands.status import erased_keys_report

    places = erased_keys_report(outline.log, outline.schema, receipt)
    for place in places:
        since = f" since version {version_name(place['gone_since'])}" if place["gone_since"] else ""
        print(f"{place['feature']}={place['id']}: gone{since}; ", end="")
        if place["oldest_file"] is None:
            print("no file of the log holds it")
        else:
            print(f"the oldest file that still holds it is {place['oldest_file']}, which goes {place['goes']}")
    if (left := len((receipt.entry or {}).get("keys", ())) - len(places)) > 0:
        print(f"and {left:,} more: `springtide versions show --key FEATURE=ID` tells of each")
