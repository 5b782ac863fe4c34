"""Which versions the health gate can go back to, by what the log holds: also those from before this start."""

import logging

from springtide_client.errors import LogError
from springtide_client.log.directory import LogDirectory

from app.errors import UserError
from app.version_log.read.index import LogIndex

logger = logging.getLogger(__name__)


def last_good_before(directory: LogDirectory, num_samples: int) -> int | None:
    """The newest version of at most so many samples; None where the log cannot be read.

    What was learned before a rollback is no past of what came after: no version older than the newest rollback.
    """
    try:
        index = LogIndex(directory)
        number = index.numbers[0]
        for entry in reversed(index.entries):
            meta = entry.read_head().meta
            number = entry.number
            if meta.samples_trained <= num_samples or meta.restores:
                return number
    except (UserError, LogError) as error:
        logger.warning("no version from before was found", extra={"samples": num_samples, "reason": str(error)})
        return None
    return number


def oldest_restorable(directory: LogDirectory, number: int) -> int:
    """The version, or the oldest that can still be built where its base is retired."""
    return max(number, min(directory.scan().bases, default=0))
