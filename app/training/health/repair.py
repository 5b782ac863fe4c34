"""A log that got damaged ahead of its newest base, mended under a new epoch while the trainer runs on.

Nobody could follow any more, and no base be made: what is lost is learned again, as a restart would.
"""

import logging
from typing import TYPE_CHECKING

from app.version_log.read.corruption import find_corruption
from app.version_log.write.writer import LogWriter

if TYPE_CHECKING:
    from app.training.trainer import Trainer

logger = logging.getLogger(__name__)


def mend(trainer: "Trainer") -> None:
    """1. Look, for others may be wrong. 2. Take the next epoch, which seals what can be read. 3. Begin anew from there.

    Between batches only.
    """
    said, trainer.corruption = trainer.corruption, ""
    if not trainer.wait_until_durable():
        return
    assert trainer.log.last_encoded is not None
    if not (reason := find_corruption(trainer.log.directory, trainer.log.last_encoded)):
        logger.warning("the log is said to be damaged, and is not", extra={"reason": said})
        return
    logger.error("the log is damaged, beginning again before that", extra={"reason": reason})
    trainer.log.close()
    trainer.log = LogWriter.open(trainer.config.log, schema=trainer.config.schema)
    trainer.status.set_epoch(trainer.log.epoch)
    trainer.reload()
