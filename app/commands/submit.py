"""Submit a command to the trainer and report its result; without a running trainer it is executed right here."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from springtide.app.config.load import Config
    from springtide.app.version_log.commands.status import CommandStatus

POLL_SECONDS = 0.1
WAIT_SECONDS = 30.0


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the --wait option to a subcommand."""
    parser.add_argument(
        "--wait",
        type=float,
        default=WAIT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait for a running trainer's result (default: {WAIT_SECONDS:g}; 0: do not wait)",
    )


def submit_and_wait(
    config: "Config", kind: str, body: dict[str, Any], *, wait_seconds: float
) -> "CommandStatus | None":
    """Submit a command and return its status once it is executed; None if it is still waiting for a trainer."""
    from springtide.app.version_log.commands.offline import execute_pending
    from springtide.app.version_log.commands.queue import submit_command
    from springtide.app.version_log.commands.status import command_status
    from springtide.app.version_log.errors import FencedError, LogBusyError
    from springtide_client.errors import LogError

    log_path = config.log.path
    command_id = submit_command(log_path, kind, body)
    try:
        execute_pending(config.log, window_samples=config.train.window_samples)
    except (LogBusyError, FencedError):
        print(f"command {command_id}: the running trainer will execute it with its next version")
        wait_until_durable(log_path, command_id, wait_seconds)
    except LogError as error:
        # the file stays: the next trainer that can read the log executes it
        print(f"command {command_id}: it cannot be executed now ({error}); the next trainer will execute it")
        return None
    status = command_status(log_path, command_id)
    if status is not None and status.entry is not None:
        return status
    print(f"command {command_id}: not executed yet; it stays until a trainer executes it")
    return None


def wait_until_durable(log_path: Path, command_id: str, seconds: float) -> None:
    """Wait until the version that carries the command is durable, or the time is over."""
    from springtide.app.version_log.commands.status import command_status

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = command_status(log_path, command_id)
        if status is None or status.state == "durable":
            return
        time.sleep(POLL_SECONDS)


def print_result(status: "CommandStatus") -> int:
    """Print what the command did, in one line; return the exit code."""
    from springtide_client.format.records import version_name

    result = dict(status.entry.result) if status.entry else {}
    place = f"version {version_name(status.version)}" if status.version else "a version older than the log reaches back"
    if "refused" in result:
        print(f"command {status.id}: refused in {place}: {result['refused']}")
        return 2
    numbers = {name: value for name, value in result.items() if isinstance(value, int) and name != "version"}
    figures = ", ".join(f"{name} {value:,}" for name, value in numbers.items())
    print(f"command {status.id}: executed in {place} ({status.state}): {figures}")
    for group in ("kept", "begun", "dropped"):
        for line in result.get(group, ()):
            print(f"  {group:<8} {line}")
    return 0
