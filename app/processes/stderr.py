"""Output of a process to stderr: log events as lines, and an error as one line that says whether it is a bug."""

import logging
import sys
import time

from springtide.app.errors import UserError

STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class LogFormatter(logging.Formatter):
    """One line per event: `12:03:04 version published version=17`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        values = "".join(f" {key}={value}" for key, value in vars(record).items() if key not in STANDARD_ATTRIBUTES)
        text = f"{at} {level}{record.getMessage()}{values}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def report_error(error: Exception) -> int:
    """Print the error in one line and return the exit code."""
    from springtide.stream.errors import InputFileError

    if isinstance(error, (UserError, InputFileError)):
        print(f"springtide: {one_line(error)}", file=sys.stderr)
        return 2
    if is_expected(error):
        print(f"springtide: {one_line(error)}", file=sys.stderr)
        return 1
    name = type(error).__name__
    print(f"springtide: {name}: {one_line(error)} (a bug: run again with --debug for the traceback)", file=sys.stderr)
    return 1


def is_expected(error: Exception) -> bool:
    """Return True if the error is part of normal operation, its text written for the user; False for a bug."""
    from springtide_client.errors import SpringtideError

    return isinstance(error, (SpringtideError, OSError))


def one_line(error: Exception) -> str:
    """Return the error's text without line breaks."""
    return " ".join(str(error).split())
