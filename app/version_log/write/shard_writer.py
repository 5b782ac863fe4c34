"""The log's writer of a rank above 0: it appends shard records to files of its own, beside those of rank 0."""

from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.write.encoder import RecordEncoder, ShardEncoder
from springtide.app.version_log.write.epoch import Epoch
from springtide.app.version_log.write.ranks import LogRanks, wait_for_start
from springtide.app.version_log.write.roles import Alone, OtherRank
from springtide.app.version_log.write.trainer_lock import WAIT_SECONDS, TrainerLock
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import Tip
from springtide_client.schema import Schema

START_SECONDS = 600.0  # rank 0 fsyncs and reads what its predecessors wrote


class ShardWriter(LogWriter):
    """Has the calls of a LogWriter. What it is given of a version is written as this rank's shard record of it.

    `meta` and the exact state of the net are rank 0's. A version is published and durable when rank 0 says so. Whether
    the log is full, and whether a version without rows is needed, is for rank 0 to say: here both are False.
    """

    @staticmethod
    def join(config: LogConfig, ranks: LogRanks, *, wait_seconds: float = WAIT_SECONDS) -> "ShardWriter":
        """Wait for the epoch that rank 0 starts, and write beside it; raises LogError if it could not start."""
        report = wait_for_start(ranks, START_SECONDS + wait_seconds)
        assert report.manifest is not None
        epoch = Epoch(report.manifest.epoch, report.manifest, TrainerLock.none(), report.exact_state)
        return ShardWriter(config, epoch, ranks)

    def _new_role(self) -> Alone:
        assert self._ranks is not None
        return OtherRank(self._ranks, self.epoch)

    def _new_encoder(self) -> RecordEncoder:
        return ShardEncoder(self.epoch, self.start_tip, self.rank)

    @property
    def published(self) -> Tip | None:
        """The newest version that readers can see, as rank 0 reported a moment ago."""
        return self._role.published() or self.start_tip

    @property
    def is_full(self) -> bool:
        return False

    @property
    def must_tell_durable(self) -> bool:
        return False

    def _remove_old_states(self, number: int, exact_state: int) -> None:
        pass

    def _measure(self, queued_bytes: int) -> None:
        pass


def open_log(
    config: LogConfig,
    *,
    schema: Schema,
    take_over: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    ranks: LogRanks | None = None,
) -> LogWriter:
    """Start the next epoch, or join the one that rank 0 of the same launch starts. Raises as `LogWriter.open`."""
    if ranks is not None and ranks.rank > 0:
        return ShardWriter.join(config, ranks, wait_seconds=wait_seconds)
    return LogWriter.open(config, schema=schema, take_over=take_over, wait_seconds=wait_seconds, ranks=ranks)
