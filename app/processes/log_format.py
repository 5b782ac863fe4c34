"""The format of log lines: time, level from warning on, message, then the event's values as key=value."""

import logging
import time

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
