"""The nouns that leave this room: Columns (a decoded poll) and Batch (what is learned at once). Plain arrays."""

# N samples, L labels
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from springtide_client.features import Features, IdStrings

from stream.positions import Partition


@dataclass(frozen=True)
class DeadLetter:
    """A record that cannot be learned: its raw bytes and the reason."""

    partition: Partition
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    record_ms: int


@dataclass(frozen=True)
class Columns:
    """Samples decoded to columns. Within a partition, rows stand in the order of their offsets."""

    features: Features
    labels_NL: npt.NDArray[np.float32]  # 0..1; NaN = masked (null where there are several labels)
    weights_N: npt.NDArray[np.float32]
    event_ms_N: npt.NDArray[np.int64]
    record_ms_N: npt.NDArray[np.int64]  # Kafka's record timestamps
    partition_N: npt.NDArray[np.int32]  # index into partitions
    offset_N: npt.NDArray[np.int64]
    partitions: tuple[Partition, ...]
    dead_letters: tuple[DeadLetter, ...]  # by partition and offset
    end_offsets: dict[Partition, int]  # the offset after everything that this holds, dead letters and gaps included
    id_strings: IdStrings
    # changes when a topic of the same name is made anew and offsets begin at 0 again; empty where the broker has none
    topic_ids: Mapping[Partition, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels_NL)


@dataclass(frozen=True)
class Batch:
    """Samples to learn at once, and where the stream stands once they are learned. May hold no sample."""

    features: Features
    labels_NL: npt.NDArray[np.float32]
    weights_N: npt.NDArray[np.float32]
    event_ms_N: npt.NDArray[np.int64]
    record_ms_N: npt.NDArray[np.int64]
    positions: dict[Partition, int]  # next offset to read, of every partition that this batch moves
    dead_letters: tuple[DeadLetter, ...] = ()  # the dead letters that these positions pass
    id_strings: list[IdStrings] = field(default_factory=list)
    topic_ids: dict[Partition, str] = field(default_factory=dict)  # of the partitions in positions, where known
    watermarks: dict[Partition, int] = field(default_factory=dict)  # the latest event time learned of each, ms

    def __len__(self) -> int:
        return len(self.labels_NL)
