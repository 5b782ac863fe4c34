"""Finds versions that a rollback can return to, also those from before this start."""

import logging

from springtide.app.errors import UserError
from springtide.app.version_log.read.index import LogIndex
from springtide_client.errors import LogError
from springtide_client.log.directory import LogDirectory

logger = logging.getLogger(__name__)


def last_good_before(directory: LogDirectory, num_samples: int) -> int | None:
    """Return the newest version of at most that many samples; None if the log cannot be read.

    No version older than the newest rollback or changed schema is returned: what was learned before it does not lead to
    the present.
    """
    try:
        index = LogIndex(directory)
        begin = index.begin_of(index.numbers[-1])
        number = max(index.numbers[0], begin)
        for entry in reversed(index.entries):
            if entry.number < begin:
                return begin
            meta = entry.read_head().meta
            number = entry.number
            if meta.samples_trained <= num_samples or meta.restores:
                return number
    except (UserError, LogError) as error:
        logger.warning("no earlier version was found", extra={"samples": num_samples, "reason": str(error)})
        return None
    return number


def oldest_restorable(directory: LogDirectory, number: int) -> int:
    """Return this version, or the next one that can be restored if retention has deleted what leads to it."""
    if number >= min(directory.scan().bases, default=0):
        try:
            index = LogIndex(directory)
        except (UserError, LogError):
            return number
        return next((n for n in index.numbers if n >= number and index.is_restorable(n)), number)
    return min(directory.scan().bases, default=number)
