"""Everything that learning continues with from the end of the log; a rollback or a repair replaces it as a whole."""

import logging
from collections import deque
from collections.abc import Callable, Mapping

import torch

from springtide.app.models.registry import generator_lock
from springtide.app.training.batches import BatchStream
from springtide.app.training.bootstrap import load_state
from springtide.app.training.commands import CommandExecutor
from springtide.app.training.config import TrainerConfig, disk_folder, wait_seconds_of
from springtide.app.training.ranks.ranks import Ranks, launch_name
from springtide.app.training.start_position import StartPosition
from springtide.app.training.state.net_publisher import NetPublisher
from springtide.app.training.state.rank_progress import MergedProgress, RankProgress
from springtide.app.training.state.spill_gc import SpillGC
from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.commands.queue import Command, lost_commands
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.positions import Partition, Position
from springtide.stream.source import Source
from springtide_client.system.clock import wall_ms

BEHIND_MS = 3000  # a batch whose records have waited so much longer than it waits for more has waited for the trainer

logger = logging.getLogger(__name__)


class TrainingSession:
    """The state, the stream that it is fed from, and what follows its versions: commands, spill, committed offsets."""

    def __init__(
        self, config: TrainerConfig, log: LogWriter, state: TrainingState, commands: CommandExecutor, *, until_end: bool
    ) -> None:
        self.log, self.state, self.commands, self.ranks = log, state, commands, state.ranks
        self.spill_gc = SpillGC(
            state.learner.table.tables, log.directory, state.base_number, on_mapped=state.on_base_mapped
        )
        self.net = NetPublisher(config.log, state.learner, log)
        self.committed = CommittedOffsets(state.stream.positions)
        self._config, self._until_end = config, until_end
        self.batches = self._open_batches()
        self.is_catching_up = True  # see `note_lag`

    @staticmethod
    def load(
        config: TrainerConfig,
        log: LogWriter,
        *,
        until_end: bool,
        roll_back: Callable[[Command], None],
        ranks: Ranks | None = None,
    ) -> "TrainingSession":
        """Read the log back. UserError if the configuration does not fit it, LogError or SpillError if it fails.

        All `ranks` read it, and return once all have.
        """
        with generator_lock:
            torch.manual_seed(config.train.seed)
        ranks = ranks or Ranks()
        state = load_state(config, log, ranks=ranks)
        try:
            commands = CommandExecutor(config.log.path, log.epoch, state, roll_back=roll_back)
            ranks.barrier()
            ranks.remove_former_spills(disk_folder(config), log.epoch)
            lost = list(lost_commands(log.directory, state.executed_commands)) if ranks.is_first else []
            commands.reexecute_lost(ranks.broadcast(lost))
            return TrainingSession(config, log, state, commands, until_end=until_end)
        except BaseException:
            state.learner.table.close()
            raise

    @property
    def source(self) -> Source:
        """The stream."""
        return self.batches.source

    def reload(self, log: LogWriter, roll_back: Callable[[Command], None]) -> "TrainingSession":
        """Close this session, and continue from the end of the log as a restart does: memory and spill start empty."""
        self.close()
        session = TrainingSession.load(
            self._config, log, until_end=self._until_end, roll_back=roll_back, ranks=self.ranks
        )
        try:
            session.batches.start(after=self.batches)
        except BaseException:
            session.close()
            raise
        return session

    def start(self) -> None:
        """Begin to read the stream."""
        self.batches.start()

    def seek(self, start: StartPosition) -> None:
        """Continue from other positions. Call it before `start`. All ranks, of which the first resolves them.

        Not if a start of the same launch has done so before: ranks that are started again go on.
        """
        launch = self.ranks.broadcast(launch_name())
        if launch and launch == self.state.stream.sought_by:
            logger.info("the start position is that of an earlier try of this launch: learning goes on")
            return
        positions = self.state.stream.positions
        self.state.seek(self.ranks.on_rank0(lambda: start.resolve(self._config.source, positions)), launch=launch)
        self.batches = self._open_batches()

    def restart_source(self) -> None:
        """Read again from the learned positions on: what was read ahead was decoded without the newest erasures."""
        before = self.batches
        before.close()
        self.batches = self._open_batches()
        self.batches.start(after=before)

    @property
    def behind_ms(self) -> float:
        """How far behind the stream a batch is that has waited for the trainer: longer than batches wait on purpose."""
        return BEHIND_MS + 1000 * wait_seconds_of(self._config)

    def note_lag(self) -> None:
        """Note how far behind the stream the batch is that is learned next.

        The trainer is catching up from its start, and from a batch on that is taken more than `behind_ms` behind the
        stream, until less than a full batch waits behind the one that is taken. The delay of what
        it learns meanwhile measures how long it was stopped, not how fresh it is.
        """
        if self.source.has_partitions and wall_ms() - self.complete_until_ms() > self.behind_ms:
            self.is_catching_up = True
        elif self.batches.is_near_end:
            self.is_catching_up = False
        self.state.unpublished.is_catching_up |= self.is_catching_up

    def exchange(self) -> MergedProgress:
        """Let every rank know what all know, for a version or the status. All ranks."""
        batches, stream = self.batches, self.state.stream
        own = RankProgress.of(
            self.state,
            complete_until_ms=self.complete_until_ms() if self.source.has_partitions else None,
            limit_ms=self.max_event_ms(),
            idle=batches.idle_partitions(stream.positions, stream.clock),
        )
        progress = MergedProgress(self.ranks.all_gather(own))
        progress.merge_into(self.state)
        return progress

    def positions_read(self) -> Mapping[Partition, Position]:
        """Return how far each partition is read for what is learned."""
        return self.source.positions_read(self.state.stream.positions)

    def complete_until_ms(self) -> int:
        """Return the wall time at which every record then readable is learned by now; 0 if there is none.

        Of several ranks: every record of this one's partitions.
        """
        return self.source.complete_until_ms(self.state.stream.positions) or 0

    def max_event_ms(self) -> int:
        """Return the limit of the event clock: now, plus `[source] max_future_seconds`."""
        return wall_ms() + int(self._config.source.max_future_seconds * 1000)

    def stall_reason(self) -> str:
        """Return what the current step waits for in the spill, or "". Safe to call from any thread."""
        return self.state.learner.table.stall_reason()

    def close(self) -> None:
        """Stop reading and drop all rows in memory and in the spill."""
        self.batches.close()
        self.state.learner.table.close()

    def _open_batches(self) -> BatchStream:
        stream = self.state.stream
        return BatchStream(
            self._config,
            stream.positions,
            until_end=self._until_end,
            samples_trained=stream.samples_trained,
            erasures=stream.erasures,
            share=self.ranks.share,
            join=stream.own_join,
        )


class CommittedOffsets:
    """Remembers the positions of each version until that version, or a later one, is durable."""

    def __init__(self, positions: Mapping[Partition, Position]) -> None:
        """`positions`: those of the end of the log when learning began."""
        self.offsets = _offsets(positions)
        self._pending: deque[tuple[int, dict[Partition, int]]] = deque()

    def on_published(self, version: int, positions: Mapping[Partition, Position]) -> None:
        """Note the positions that a version holds."""
        self._pending.append((version, _offsets(positions)))

    def advance(self, durable: int) -> bool:
        """Versions up to this one are durable. Returns True if `offsets` may have changed."""
        has_moved = False
        while self._pending and self._pending[0][0] <= durable:
            self.offsets, has_moved = self._pending.popleft()[1], True
        return has_moved


def _offsets(positions: Mapping[Partition, Position]) -> dict[Partition, int]:
    return {partition: position.offset for partition, position in positions.items()}
