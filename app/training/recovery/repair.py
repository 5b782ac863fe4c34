"""Repairs a log that is corrupt ahead of its newest base, while the trainer runs.

No reader can follow past the corruption, and no base can be built of what lies behind it. The trainer continues under a
new epoch from the last readable version, and learns again what is lost, as a restart would.
"""

import logging

from springtide.app.version_log.read.corruption import find_corruption
from springtide.app.version_log.write.writer import LogWriter

logger = logging.getLogger(__name__)


def is_corrupt(log: LogWriter, report: str) -> bool:
    """Verify a corruption report; if it is right, the next epoch seals what is readable. All is durable by now."""
    assert log.last_encoded is not None
    reason = find_corruption(log.directory, log.last_encoded)
    if not reason:
        logger.warning("log corruption reported, but verification found none", extra={"reason": report})
        return False
    logger.error("the log is corrupt: continuing under a new epoch from before it", extra={"reason": reason})
    return True
