"""Repairs a log that is corrupt ahead of its newest base, while the trainer runs.

No reader can follow past the corruption, and no base can be built of what lies behind it. The trainer continues under a
new epoch from the last readable version, and learns again what is lost, as a restart would.
"""

import logging

from springtide_client.schema import Schema

from app.version_log.config import LogConfig
from app.version_log.read.corruption import find_corruption
from app.version_log.write.writer import LogWriter

logger = logging.getLogger(__name__)


def reopen(log: LogWriter, config: LogConfig, schema: Schema, report: str) -> LogWriter | None:
    """Verify a corruption report; if it is right, close the log and open the next epoch, which seals what is readable.

    Everything appended must be durable. Returns None, and leaves the log open, if the report is wrong.
    """
    assert log.last_encoded is not None
    reason = find_corruption(log.directory, log.last_encoded)
    if not reason:
        logger.warning("log corruption reported, but verification found none", extra={"reason": report})
        return None
    logger.error("the log is corrupt: continuing under a new epoch from before it", extra={"reason": reason})
    log.close()
    return LogWriter.open(config, schema=schema)
