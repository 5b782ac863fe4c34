"""Undecoded records of one partition: their bytes, timestamps and offsets. Knows no format."""

# N records
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from springtide.stream.positions import Partition


@dataclass(frozen=True)
class RawRecords:
    """Records of one partition in the order of their offsets; keys and values are slices of one buffer.

    Record n's value is buffer[value_start_N[n] : value_start_N[n] + value_length_N[n]]; a length of -1 is a null
    (tombstone). Keys likewise. Nothing is copied: the buffer lives as long as this object.
    """

    partition: Partition
    buffer: bytes
    value_start_N: npt.NDArray[np.int64]
    value_length_N: npt.NDArray[np.int64]  # -1 = null
    key_start_N: npt.NDArray[np.int64]
    key_length_N: npt.NDArray[np.int64]  # -1 = null
    record_ms_N: npt.NDArray[np.int64]
    offset_N: npt.NDArray[np.int64]
    end: int  # the next offset to read: after these records, compacted offsets and control records

    def __len__(self) -> int:
        return len(self.offset_N)

    def value(self, n: int) -> bytes | None:
        """A copy of record n's value; None for a tombstone."""
        start, length = int(self.value_start_N[n]), int(self.value_length_N[n])
        return None if length < 0 else self.buffer[start : start + length]

    def key(self, n: int) -> bytes | None:
        """A copy of record n's key; None where it has none."""
        start, length = int(self.key_start_N[n]), int(self.key_length_N[n])
        return None if length < 0 else self.buffer[start : start + length]

    def before(self, offset: int) -> "RawRecords":
        """The records before an offset, which becomes the end; all of them where they end at or before it."""
        if self.end <= offset:
            return self
        return replace(self._slice(slice(0, int(np.searchsorted(self.offset_N, offset)))), end=offset)

    def from_offset(self, offset: int) -> "RawRecords":
        """The records at and after an offset."""
        first = int(np.searchsorted(self.offset_N, offset))
        return self if first == 0 else self._slice(slice(first, None))

    def _slice(self, rows: slice) -> "RawRecords":
        return replace(
            self,
            value_start_N=self.value_start_N[rows],
            value_length_N=self.value_length_N[rows],
            key_start_N=self.key_start_N[rows],
            key_length_N=self.key_length_N[rows],
            record_ms_N=self.record_ms_N[rows],
            offset_N=self.offset_N[rows],
        )

    @staticmethod
    def from_messages(
        partition: Partition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        record_ms: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
        end: int | None = None,
    ) -> "RawRecords":
        """Join separate messages into one buffer: for plain polls and for tests.

        Defaults: no keys, record times of 0, offsets that count from 0, and an end after the last offset.
        """
        num_records = len(values)
        keys = [None] * num_records if keys is None else keys
        value_length_N = np.fromiter((-1 if v is None else len(v) for v in values), np.int64, num_records)
        key_length_N = np.fromiter((-1 if k is None else len(k) for k in keys), np.int64, num_records)
        ends_2N = np.cumsum(np.maximum(np.concatenate([value_length_N, key_length_N]), 0))
        starts_2N = np.zeros(2 * num_records, np.int64)
        starts_2N[1:] = ends_2N[:-1]
        offset_N = np.arange(num_records, dtype=np.int64) if offsets is None else np.array(offsets, np.int64)
        if end is None:
            end = int(offset_N[-1]) + 1 if num_records else 0
        return RawRecords(
            partition=partition,
            buffer=b"".join([v or b"" for v in values] + [k or b"" for k in keys]),
            value_start_N=starts_2N[:num_records],
            value_length_N=value_length_N,
            key_start_N=starts_2N[num_records:],
            key_length_N=key_length_N,
            record_ms_N=np.zeros(num_records, np.int64) if record_ms is None else np.array(record_ms, np.int64),
            offset_N=offset_N,
            end=end,
        )
