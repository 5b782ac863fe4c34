"""`springtide forget --key user_id=123`, and how any command is submitted to the trainer and waited for.

Without a running trainer it is executed right here.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from springtide.app.commands.command import Report, Subcommand, add_json

if TYPE_CHECKING:
    from springtide.app.config.load import Config
    from springtide.app.version_log.commands.queue import CommandStatus, ErasedKey

POLL_SECONDS = 0.1
WAIT_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key", action="append", default=[], metavar="FEATURE=ID", help="an id to erase; may be given several times"
    )
    parser.add_argument("--file", type=Path, help="a file with one FEATURE=ID per line")
    add_wait(parser)


def forget(arguments: argparse.Namespace) -> Report:
    from springtide.app.config.load import load_config
    from springtide.app.errors import UserError
    from springtide.app.version_log.commands.queue import erased_keys_report
    from springtide.app.version_log.trainer_status import has_log

    config = load_config(arguments.config)
    keys = read_keys(config, arguments.key, arguments.file)
    if not has_log(config.log.path):
        raise UserError(f"there is no log in {config.log.path} yet: nothing was learned, so there is nothing to forget")
    status, report = submit_and_wait(config, "forget", {"keys": keys}, wait_seconds=arguments.wait)
    if status is None or report.exit_code:
        return report
    erased = erased_keys_report(config.log, config.schema, status)
    num_more = len(status.entry.keys if status.entry else ()) - len(erased)
    return Report({**report.document, "keys": erased}, [*report.lines, *erased_lines(erased, num_more)])


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


def erased_lines(report: "list[ErasedKey]", num_more: int) -> Iterator[str]:
    """Say of the first erased ids which file of the log still holds them, and until when."""
    from springtide_client.format.records import version_name

    for key in report:
        since = f" since version {version_name(key.erased_in)}" if key.erased_in else ""
        place = "no file of the log holds it"
        if key.oldest_file is not None:
            place = (
                f"the oldest file that still holds it is {key.oldest_file}, which is deleted {key.removal_condition}"
            )
        yield f"{key.feature}={key.id}: erased{since}; {place}"
    if num_more > 0:
        yield f"and {num_more:,} more: `springtide versions show --key FEATURE=ID` reports on each"


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the --wait and --json options to a subcommand."""
    parser.add_argument(
        "--wait",
        type=float,
        default=WAIT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait for a running trainer's result (default: {WAIT_SECONDS:g}; 0: do not wait)",
    )
    add_json(parser)


def submit_and_wait(
    config: "Config", kind: str, body: dict[str, Any], *, wait_seconds: float
) -> "tuple[CommandStatus | None, Report]":
    """Submit a command and report what it did; without a status if it is still waiting for a trainer."""
    from springtide.app.version_log.commands.offline import execute_pending
    from springtide.app.version_log.commands.queue import command_status, submit_command
    from springtide.app.version_log.errors import FencedError, LogBusyError
    from springtide_client.errors import LogError

    log_path = config.log.path
    command_id = submit_command(log_path, kind, body)
    try:
        execute_pending(config.log, window_samples=config.train.window_samples)
    except (LogBusyError, FencedError):
        message = f"command {command_id}: the running trainer will execute it with its next version"
        print(message, file=sys.stderr, flush=True)
        wait_until_durable(log_path, command_id, wait_seconds)
    except LogError as error:
        # the file stays: the next trainer that can read the log executes it
        return None, _waiting(command_id, f"it cannot be executed now ({error}); the next trainer will execute it")
    status = command_status(log_path, command_id)
    if status is not None and status.entry is not None:
        return status, result_of(status)
    return None, _waiting(command_id, "not executed yet; it stays until a trainer executes it")


def _waiting(command_id: str, why: str) -> Report:
    return Report({"command": command_id, "state": "waiting"}, [f"command {command_id}: {why}"])


def wait_until_durable(log_path: Path, command_id: str, seconds: float) -> None:
    """Wait until the version that carries the command is durable, or the time is over."""
    from springtide.app.version_log.commands.queue import command_status

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = command_status(log_path, command_id)
        if status is None or status.state == "durable":
            return
        time.sleep(POLL_SECONDS)


def result_of(status: "CommandStatus") -> Report:
    """Return what the command did, in one line and lines for what a schema kept."""
    from springtide_client.format.records import version_name

    result, document = dict(status.entry.result) if status.entry else {}, status.document()
    place = f"version {version_name(status.version)}" if status.version else "a version older than the log reaches back"
    if "refused" in result:
        return Report(document, [f"command {status.id}: refused in {place}: {result['refused']}"], exit_code=2)
    numbers = {name: value for name, value in result.items() if isinstance(value, int) and name != "version"}
    figures = ", ".join(f"{name} {value:,}" for name, value in numbers.items())
    changes = [f"  {group:<8} {line}" for group in ("kept", "begun", "dropped") for line in result.get(group, ())]
    return Report(document, [f"command {status.id}: executed in {place} ({status.state}): {figures}", *changes])


FORGET = Subcommand("erase ids from the model and from every follower", add_arguments, forget)
