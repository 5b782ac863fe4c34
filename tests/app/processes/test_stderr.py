"""A log line has time, level from warning on, message and values."""

import logging
import re
import sys

from springtide.app.processes.stderr import LogFormatter


def line(level: int, **extra: object) -> str:
    record = logging.getLogger("test").makeRecord(
        "test", level, "file", 1, "version %s", ("published",), None, extra=extra
    )
    return LogFormatter().format(record)


def test_values_follow_the_message() -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d version published version=17 rows=3", line(logging.INFO, version=17, rows=3))


def test_a_warning_names_its_level() -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: version published", line(logging.WARNING))


def test_an_exception_follows_with_its_traceback() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        record = logging.getLogger("test").makeRecord("test", logging.ERROR, "file", 1, "failed", (), sys.exc_info())
    lines = LogFormatter().format(record).splitlines()
    assert lines[0].endswith("error: failed")
    assert lines[-1] == "ValueError: wrong"
