"""The arrays that records are decoded into, one row per record, and how they become Columns."""

# N records, then samples; C categorical, P list, F dense features; L labels; E elements of all lists; M of one feature
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.columns import Columns, DeadLetter, RawRecords
from springtide_client.encode import EncodedInstance
from springtide_client.features import Features, IdStrings, Ragged
from springtide_client.schema import Schema
from springtide_client.targets import SampleTargets


class DecodedRows:
    """One row per record. List p of record n is the length_NP[n, p] ids from start_NP[n, p] on in elements_E."""

    def __init__(self, schema: Schema, num_records: int, num_keys: int = 0) -> None:
        self.key_NK = np.empty((num_records, num_keys), np.int64)
        self.categorical_NC = np.empty((num_records, len(schema.categorical)), np.int64)
        self.dense_NF = np.empty((num_records, len(schema.dense)), np.float32)
        self.labels_NL = np.full((num_records, len(schema.labels)), np.nan, np.float32)
        self.weights_N = np.empty(num_records, np.float32)
        self.event_ms_N = np.empty(num_records, np.int64)
        self.start_NP = np.empty((num_records, len(schema.lists)), np.int64)
        self.length_NP = np.empty((num_records, len(schema.lists)), np.int64)
        self.elements_E = np.empty(0, np.int64)
        self.num_elements = 0
        self.weighted = [place for place, name in enumerate(schema.lists) if name in schema.weighted]
        self.weights_E = np.empty(0, np.float32)  # of elements, where a list is weighted

    def reserve(self, num_elements: int) -> None:
        """Make room for `num_elements` more elements."""
        if self.num_elements + num_elements > len(self.elements_E):
            larger_E = np.empty(max(2 * len(self.elements_E), self.num_elements + num_elements), np.int64)
            larger_E[: self.num_elements] = self.elements_E[: self.num_elements]
            self.elements_E = larger_E
            if self.weighted:
                weights_E = np.empty(len(larger_E), np.float32)
                weights_E[: self.num_elements] = self.weights_E[: self.num_elements]
                self.weights_E = weights_E

    def write(self, n: int, sample: SampleTargets, encoded: EncodedInstance, keys: Sequence[int] = ()) -> None:
        """Write record n as the reference encoder has encoded it."""
        self.labels_NL[n] = sample.labels or np.nan
        self.key_NK[n] = keys
        self.weights_N[n] = sample.weight
        self.event_ms_N[n] = sample.event_ms
        self.categorical_NC[n] = encoded.categorical
        self.dense_NF[n] = encoded.dense
        for p, ids in enumerate(encoded.lists):
            self.reserve(len(ids))
            self.start_NP[n, p] = self.num_elements
            self.length_NP[n, p] = len(ids)
            self.elements_E[self.num_elements : self.num_elements + len(ids)] = ids
            if p in self.weighted:
                weights = encoded.weights[self.weighted.index(p)]
                self.weights_E[self.num_elements : self.num_elements + len(ids)] = weights
            self.num_elements += len(ids)

    def columns(
        self,
        raw: RawRecords,
        is_sample_N: npt.NDArray[np.bool_],
        dead_letters: Sequence[DeadLetter],
        id_strings: IdStrings,
        *,
        record_R: npt.NDArray[np.int64] | None = None,
    ) -> Columns:
        """The rows that are samples, in their order. `record_R`: the record of each row, where it may have several."""
        kept = slice(None) if is_sample_N.all() else is_sample_N
        start_NP, length_NP = self.start_NP[kept], self.length_NP[kept]
        lists = tuple(self._list(start_NP, length_NP, p) for p in range(start_NP.shape[1]))
        record_N = kept if record_R is None else record_R[kept]
        offset_N = raw.offset_N[record_N]
        return Columns(
            features=Features(categorical_NC=self.categorical_NC[kept], lists=lists, dense_NF=self.dense_NF[kept]),
            labels_NL=self.labels_NL[kept],
            weights_N=self.weights_N[kept],
            event_ms_N=self.event_ms_N[kept],
            record_ms_N=raw.record_ms_N[record_N],
            partition_N=np.zeros(len(offset_N), np.int32),
            offset_N=offset_N,
            partitions=(raw.partition,),
            dead_letters=tuple(dead_letters),
            end_offsets={raw.partition: raw.end},
            id_strings=id_strings,
        )

    def _list(self, start_NP: npt.NDArray[np.int64], length_NP: npt.NDArray[np.int64], p: int) -> Ragged:
        ids_M, offsets = gather_lists(self.elements_E, start_NP, length_NP, p)
        if p not in self.weighted:
            return Ragged(ids_M, offsets)
        weights_M, _ = gather_lists(self.weights_E, start_NP, length_NP, p)
        return Ragged(ids_M, offsets, weights_M)


class RecordParser(Protocol):
    """Parses common records of one format into rows, and leaves the others to the reference. One thread at a time."""

    def parse(self, raw: RawRecords, rows: DecodedRows, now_ms: int) -> tuple[npt.NDArray[np.bool_], IdStrings]:
        """Write the records to rows. Returns which records were not parsed, their rows undefined, and the new strings.

        The first result is bool (N).
        """
        ...


@njit(nogil=True, cache=True)
def gather_lists(elements_E: Any, start_NP: Any, length_NP: Any, p: Any) -> Any:
    """(ids_M, offsets) of the lists of column p, gathered in the order of the records; offsets int64 (N + 1)."""
    offsets = np.empty(len(start_NP) + 1, np.int64)
    offsets[0] = 0
    for n in range(len(start_NP)):
        offsets[n + 1] = offsets[n] + length_NP[n, p]
    ids_M = np.empty(offsets[-1], elements_E.dtype)
    for n in range(len(start_NP)):
        for i in range(length_NP[n, p]):
            ids_M[np.uint64(offsets[n] + i)] = elements_E[np.uint64(start_NP[n, p] + i)]
    return ids_M, offsets
