"""How an event and its values look on a terminal: time, level where it matters, words, key=value."""

import logging
import time

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class LogFormatter(logging.Formatter):
    """One line an event: `12:03:04 version published version=17`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        values = "".join(f" {key}={value}" for key, value in vars(record).items() if key not in STANDARD)
        text = f"{at} {level}{record.getMessage()}{values}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
