"""A version's record about its trainer: the typed form of `VersionMeta.trainer`.

`springtide_client` carries the field as plain JSON; only the trainer and the commands that write versions read it.
"""

from typing import Any

import msgspec

from springtide_client.errors import LogError
from springtide_client.format.records import StreamPosition, VersionMeta


class ErasureMeta(msgspec.Struct, frozen=True):
    """Erased keys (feature number, id), and the positions before which records still hold them."""

    keys: list[tuple[int, int]]
    until: dict[str, StreamPosition]


class GateMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The health gate's automatic rollbacks: how many there were, and the newest one."""

    rollbacks: int = 0
    skipped_in_a_row: int = 0  # samples, by rollbacks with too few good samples between them
    since: int | None = None  # samples_trained of the version gone back to
    version: int = 0
    reason: str = ""
    detail: str = ""
    skipped: int = 0


class SeekMeta(msgspec.Struct, frozen=True):
    """A change of position in one partition that was requested on the command line."""

    from_offset: int | None
    to_offset: int


class TrainerMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Trainer state that is neither a tensor nor of interest to followers. Partitions are written "topic/0"."""

    watermarks: dict[str, int] = {}  # partition -> the latest event time learned, ms
    idle: list[str] = []  # partitions that do not hold back the event clock
    loss: float | None = None  # of the newest batch
    skipped_steps: int = 0  # of the dense net, because gradients were not finite
    clipped_steps: int = 0  # of the dense net
    table: dict[str, Any] = {}  # EmbeddingTable.clock_state()
    limits: dict[str, Any] = {}  # changed at run time: [the limit, the configured value that it overrides]
    gate: GateMeta = GateMeta()
    seeks: dict[str, SeekMeta] = {}  # since the previous version
    sought_by: str = ""  # the launch of the newest change of position, which its restarts do not repeat
    erasures: list[ErasureMeta] = []  # those that the stream from this version's positions on still contains
    high_water_marks: dict[str, StreamPosition] = {}  # how far the stream was ever learned, where further than now

    @staticmethod
    def of(meta: VersionMeta) -> "TrainerMeta":
        """Decode a version's field; raises LogError if another program wrote it."""
        try:
            return msgspec.convert(meta.trainer, TrainerMeta)
        except msgspec.ValidationError as error:
            raise LogError(f"the version's trainer metadata cannot be read: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the value of `VersionMeta.trainer`."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document
