"""Append versions to the log: name them, queue them for writing, report what is published and what is durable."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.disk_budget import DiskBudget, LogUsage
from springtide.app.version_log.errors import FencedError
from springtide.app.version_log.read.exact_state import remove_states
from springtide.app.version_log.write.append_queue import AppendQueue
from springtide.app.version_log.write.epoch import Epoch, start_epoch
from springtide.app.version_log.write.ranks import LogRanks, put_start, role_of, wait_for_start
from springtide.app.version_log.write.segment_writer import PendingRecord, RecordEncoder, SegmentWriter, ShardEncoder
from springtide.app.version_log.write.state_writer import PendingState, StateWriter
from springtide.app.version_log.write.trainer_lock import WAIT_SECONDS, TrainerLock
from springtide_client.errors import LogError
from springtide_client.format.records import EPOCH_SHIFT, NO_STATE, Head, VersionMeta
from springtide_client.format.tensors import Array
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import LogManifest
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

SEGMENTS = 32  # the least number of files that log_bytes is divided into: only whole files are deleted
MEASURE_SECONDS = 0.1  # while the trainer waits for room

logger = logging.getLogger(__name__)
START_SECONDS = 600.0  # rank 0 fsyncs and reads what its predecessors wrote


@dataclass(frozen=True)
class NetState:
    """The state of the dense net that a version leaves out. By default none: it carries everything that has changed."""

    state: PendingState | None = None  # the exact state at this version, to be written beside the log
    is_exact: bool = True  # without `state`: the net is as at the newest version that has an exact state
    num_pooled_bytes: int = 0  # of the version's arrays, whose memory is bounded by their owner


class LogWriter:
    """Writes one epoch of a log. One thread appends; any thread may call the rest.

    A version is *published* once it is in its file, and readers see it. It is *exact* if the net's exact state is there
    too, and *durable* once it is exact, fsynced, and no higher epoch was claimed after that: a restart never goes back
    behind it, and bases, command statuses and offsets reported to Kafka rely on durable versions only.
    """

    def __init__(self, config: LogConfig, epoch: Epoch, ranks: LogRanks | None = None) -> None:
        self.config, self._ranks = config, ranks
        self.directory = LogDirectory(config.path)
        self.manifest: LogManifest = epoch.manifest
        self.epoch = epoch.number
        self.start_head: Head | None = epoch.manifest.head  # the version this epoch continues from; None in a new log
        self.last_number = self.start_head.number if self.start_head else 0  # of the newest version appended
        self.sealed_records = epoch.records  # for who replays the log: he takes them out
        self._lock = epoch.lock
        self._count, self._is_abandoned = 0, False
        self.exact_state = epoch.exact_state  # where the newest exact state of the net is, as in a version's meta
        # whether a trainer could continue from the newest version appended, once everything appended is written
        self.ends_exact = True
        self.states = StateWriter(
            config.path,
            on_written=lambda number: self._queue.add_state(number),
            has_log_failed=lambda: self._queue.failure is not None,
        )
        self.budget = DiskBudget(config.log_bytes)
        self._num_ranks = 1 if ranks is None else ranks.num_ranks
        self._role = role_of(ranks, self.epoch)
        self._free_bytes = config.log_bytes  # when it was measured
        self._appended_bytes = self._appended_when_measured = 0
        self._measured_at = float("-inf")
        self._samples_trained = 0  # of the newest version
        self._learned_version = 0  # the newest in which samples were learned
        self._recorded_durable = 0  # the durable version that the newest one names
        max_segment_bytes = config.log_bytes // SEGMENTS // self._num_ranks
        self._queue = AppendQueue(
            SegmentWriter(config.path, self.epoch, min(config.segment_bytes, max_segment_bytes), self.rank),
            self._new_encoder(),
            max_bytes=min(config.queue_bytes, self.budget.max_version_bytes // self._num_ranks),
            sync_seconds=config.durable_seconds,
            is_fenced=lambda: self.directory.is_fenced(self.epoch),
            before_sync=self._measure,
            wait_for_state=lambda: self.states.wait(None),
            on_durable=self._remove_old_states,
            role=self._role,
        )

    @staticmethod
    def open(
        config: LogConfig,
        *,
        schema: Schema,
        take_over: bool = False,
        wait_seconds: float = WAIT_SECONDS,
        ranks: LogRanks | None = None,
    ) -> "LogWriter":
        """Start the next epoch and seal the one before. LogBusyError if another trainer runs, unless `take_over`.

        `ranks`: where several ranks write; those above 0 join the epoch that rank 0 of the same launch starts.
        """
        path = Path(config.path)
        if ranks is not None and ranks.rank > 0:
            return ShardWriter.join(config, ranks, wait_seconds=wait_seconds)
        if ranks is None:
            return LogWriter(config, start_epoch(path, schema, take_over=take_over, wait_seconds=wait_seconds))
        with put_start(ranks) as report:
            epoch = start_epoch(path, schema, take_over=take_over, wait_seconds=wait_seconds)
            report.manifest, report.exact_state = epoch.manifest, epoch.exact_state
        return LogWriter(config, epoch, ranks)

    @property
    def rank(self) -> int:
        """Of the writers of this log, 0 for the one that writes the version records."""
        return 0 if self._ranks is None else self._ranks.rank

    def _new_encoder(self) -> RecordEncoder:
        return RecordEncoder(self.epoch, self.start_head, self._role.shards_of)

    @property
    def first_base_head(self) -> Head:
        """The version of a base with which this epoch begins: the first of a new log, or of a changed schema."""
        return Head(self.epoch << EPOCH_SHIFT, self.epoch << EPOCH_SHIFT)

    def start_after(self, base: Head) -> None:
        """Continue from this base, which is written: at most once, and before the first version of the epoch.

        FencedError if a higher epoch is claimed: then nobody reads the base.
        """
        assert self._count == 0, "the epoch has versions already"
        if self.directory.is_fenced(self.epoch):
            raise FencedError(f"another trainer started at the same time and took epoch {self.epoch + 1}")
        self._queue.start_after(base)
        self.start_head, self.last_number = base, base.number
        self.exact_state, self.ends_exact = 0, True

    def append(self, meta: VersionMeta, tensors: Mapping[str, Array]) -> Head:
        """Append a version and return its number and checksum; the arrays are copied. Waits while the queue is full.

        FencedError once a higher epoch is claimed, LogError if the disk refuses for too long.
        """
        version = self._next_version(meta, tensors)
        head = self._queue.encode(version)
        version.frame = [b"".join(version.frame)]
        self._put(version)
        return head

    def append_owned(self, meta: VersionMeta, tensors: Mapping[str, Array], net: NetState | None = None) -> int:
        """Append a version without copying its arrays, which must not change before it is published.

        Returns its number. `net`: what becomes of the exact state of a net that the version does not carry whole. The
        calling thread neither copies nor computes a checksum. Waits and raises like `append`.
        """
        version = self._next_version(meta, tensors, net or NetState())
        self._put(version)
        return version.number

    def _next_version(
        self, meta: VersionMeta, tensors: Mapping[str, Array], net: NetState = NetState()
    ) -> PendingRecord:
        """Name the next version, once the queue has room for it; its exact state begins to be written."""
        if self.start_head is None:
            raise LogError("a new log starts with a base: write one, then call start_after")
        self._queue.raise_failure()
        durable = self.durable.number if self.durable else 0
        number = (self.epoch << EPOCH_SHIFT) + self._count + 1
        if any(name.startswith("state.random") for name in tensors):
            exact_state = 0
        elif net.state is not None:
            exact_state = number
        else:
            exact_state = self.exact_state if net.is_exact else NO_STATE
        meta = msgspec.structs.replace(
            meta, durable=durable, created_ms=meta.created_ms or wall_ms(), exact_state=exact_state
        )
        version = PendingRecord(number, meta, dict(tensors), num_pooled_bytes=net.num_pooled_bytes)
        version.follows_state = exact_state > 0 and bool(meta.executed_commands)
        self._queue.wait_for_room(version.num_bytes)
        if net.state is not None:
            net.state.version = version
            self.states.put(net.state)
        return version

    def _put(self, version: PendingRecord) -> None:
        self._queue.put(version)
        self._count += 1
        was_exact, self.ends_exact = self.ends_exact, version.meta.exact_state != NO_STATE
        if self.ends_exact:
            self.exact_state = version.meta.exact_state
        self.last_number = version.number
        self._appended_bytes += version.num_bytes * self._num_ranks  # the others write about as much
        # a base may be made of it, or its rows may be part of one
        if version.meta.samples_trained != self._samples_trained or (self.ends_exact and not was_exact):
            self._samples_trained, self._learned_version = version.meta.samples_trained, version.number
        self._recorded_durable = version.meta.durable

    @property
    def last_encoded(self) -> Head | None:
        """The newest version whose checksum is known, published or not. `append_owned` encodes a moment later."""
        return self._queue.encoder.last

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the thread that encodes and writes versions, so far."""
        return self._queue.cpu_seconds

    @property
    def appended_bytes(self) -> int:
        """Of all versions, of all ranks."""
        return self._appended_bytes

    @property
    def published(self) -> Head | None:
        """The newest version that readers can see."""
        return self._queue.published

    @property
    def durable(self) -> Head | None:
        """The newest version that survives a power loss."""
        return self._queue.durable

    def wait_for_state(self) -> None:
        """Return once no exact state is being written; raises like `append`."""
        self._queue.raise_failure()
        self.states.wait()

    @property
    def stall_reason(self) -> str:
        """Why versions do not reach the disk at present; empty while they do."""
        return str(self._queue.failure or self._append_stall or self.states.stall_reason)

    @property
    def _append_stall(self) -> str:
        return self._queue.stall_reason or self._role.stall_reason

    @property
    def is_full(self) -> bool:
        """True if `log_bytes` has no room for more beside the next base: the trainer should wait for the compactor."""
        appended = self._appended_bytes - self._appended_when_measured
        is_full = self._free_bytes < appended
        # what is appended makes the next base larger too; and what was deleted makes room at once
        if appended > self.budget.max_version_bytes or (
            is_full and time.monotonic() - self._measured_at > MEASURE_SECONDS
        ):
            self._measure(self._queue.queued_bytes)
            is_full = self._free_bytes < self._appended_bytes - self._appended_when_measured
        return is_full

    @property
    def must_tell_durable(self) -> bool:
        """True if a version without rows is needed: a base is made only of versions that a later one calls durable."""
        durable = self.durable
        return durable is not None and self._recorded_durable < self._learned_version <= durable.number

    @property
    def is_stalled(self) -> bool:
        """True if versions are waiting for a disk that refuses them: the trainer should wait too."""
        return bool(self.states.stall_reason or (self._append_stall and self._queue))

    @property
    def is_writing(self) -> bool:
        """True if versions are queued and will be written; `sync` waits for them."""
        return bool(self._queue) and self._queue.failure is None

    def sync(self) -> None:
        """Return when everything appended so far is durable; raises like `append`."""
        self._queue.sync()

    def close(self) -> None:
        """Make everything durable, then release the lock. After a failure it only releases; it never raises it."""
        if self._queue.is_stopped:
            return
        try:
            self.sync()
        except LogError:
            if not self._is_abandoned:
                logger.warning(
                    "the log was closed before all versions were on disk", extra={"reason": self.stall_reason}
                )
        self.states.stop()
        self._queue.stop()
        self._lock.release()

    def abandon(self, reason: str) -> None:
        """Write no more, as if this process had died: what is appended and not published is dropped."""
        self._is_abandoned = True
        self._queue.fail(LogError(reason))

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove_old_states(self, number: int, exact_state: int) -> None:
        """Delete the exact states of versions that no restart goes back to, now that a newer version is durable."""
        remove_states(self.config.path, exact_state or number)

    def _measure(self, queued_bytes: int) -> None:
        # what is appended meanwhile counts twice until the next time, rather than not at all
        appended = self._appended_bytes - queued_bytes * self._num_ranks
        self._free_bytes = self.budget.free_bytes(LogUsage.of(self.config.path))
        self._appended_when_measured, self._measured_at = appended, time.monotonic()


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

    def _new_encoder(self) -> RecordEncoder:
        return ShardEncoder(self.epoch, self.start_head, self.rank)

    @property
    def published(self) -> Head | None:
        """The newest version that readers can see, as rank 0 reported a moment ago."""
        return self._role.published() or self.start_head

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
