"""How commands give orders: put down, executed here where no trainer runs, waited for where somebody asks."""

import argparse
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.config.load import LightConfig
    from app.version_log.commands.status import CommandStatus

POLL_SECONDS = 0.1
WAIT_SECONDS = 30.0


def add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        type=float,
        default=WAIT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait for a running trainer's result (default: {WAIT_SECONDS:g}; 0: not at all)",
    )


def submit_and_wait(
    outline: "LightConfig", kind: str, body: dict[str, Any], *, wait_seconds: float, window_samples: int
) -> "CommandStatus | None":
    """What became of it: executed by a running trainer, or else here. None: it waits for a trainer still."""
    from springtide_client.errors import LogError

    from app.version_log.commands.offline import execute_pending
    from app.version_log.commands.queue import submit_command
    from app.version_log.commands.status import command_status
    from app.version_log.errors import FencedError, LogBusyError

    log_path = outline.log.path
    order_id = submit_command(log_path, kind, body)
    try:
        execute_pending(outline.log, outline.schema, window_samples=window_samples)
    except (LogBusyError, FencedError):
        print(f"order {order_id}: a trainer runs and executes it with its next version")
        wait_until_durable(log_path, order_id, wait_seconds)
    except LogError as error:
        # the order stays where it is: whoever can read the log will execute it
        print(f"order {order_id}: it cannot be executed now ({error}); the next trainer executes it")
        return None
    receipt = command_status(log_path, order_id)
    if receipt is not None and receipt.entry is not None:
        return receipt
    print(f"order {order_id}: not executed yet, it stays until a trainer does")
    return None


def wait_until_durable(log_path: Any, order_id: str, seconds: float) -> None:
    """Until a version carries the order, or the time is over."""
    from app.version_log.commands.status import command_status

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        receipt = command_status(log_path, order_id)
        if receipt is None or receipt.state == "durable":
            return
        time.sleep(POLL_SECONDS)


def print_result(receipt: "CommandStatus") -> int:
    """One line; the exit code."""
    from springtide_client.format.records import version_name

    result = dict((receipt.entry or {}).get("result") or {})
    where = f"version {version_name(receipt.version)}" if receipt.version else "a version older than the log tells of"
    if "refused" in result:
        print(f"order {receipt.id}: refused in {where}: {result['refused']}")
        return 2
    told = ", ".join(f"{name} {value:,}" for name, value in result.items() if name != "version")
    print(f"order {receipt.id}: executed in {where} ({receipt.state}): {told}")
    return 0
