"""The log's base as the table's lowest tier: finds rows that are in no tier above it."""

# U unique keys, M some of them
import numpy as np

from springtide.embeddings.rows import BoolArray, Int64Array, Rows, UInt16Array
from springtide.kernels.cpu.rows import base_file_rows
from springtide.kernels.cpu.store.readahead import Readahead
from springtide_client.array_types import UInt64Array
from springtide_client.keys import mix_keys
from springtide_client.log.base import Base
from springtide_client.rows.table_names import MAIN_TABLE

CHUNK_KEYS = 512  # their pages, up to seven each, must stay cached until they are read: 14 MiB


class BaseRows:
    """A RowSource over a mapped base. Searches and reads without the GIL: recalls run beside the learning."""

    def __init__(self, base: Base, table: str = MAIN_TABLE) -> None:
        self.base, self.rows, self.states = base, base.tables[table].rows, base.tables[table].states
        base.advise_random_access()
        self._readahead = Readahead()

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> tuple[Rows, BoolArray]:
        """1. Find the keys' places; read pages ahead if they come from the disk. 2. Copy the rows."""
        found_U = np.zeros(len(ids_U), np.bool_)
        rows = Rows.empty_of(features_U, ids_U, self.rows.value.shape[1], self.states.shape[1])
        mixed_U, before = mix_keys(features_U, ids_U), self._readahead.num_pages_read()
        if self._readahead.is_worthwhile:
            for start in range(0, len(ids_U), CHUNK_KEYS):
                part = slice(start, start + CHUNK_KEYS)
                self._find(mixed_U[part], rows.take(part), found_U[part])
        else:
            self._find(mixed_U, rows, found_U)
        self._readahead.observe(self._readahead.num_pages_read() - before, len(ids_U))
        return rows, found_U

    def _find(self, mixed_M: UInt64Array, out: Rows, found_M: BoolArray) -> None:
        rows, states, request = self.rows, self.states, self._readahead.request
        if self._readahead.is_worthwhile and len(rows):
            places_M = base_file_rows.interpolate_all(len(rows), mixed_M)
            request(rows.mixed, places_M)
            places_M = base_file_rows.refine_places(rows.mixed, places_M, mixed_M)
            request(rows.mixed, places_M)
            request(rows.feature, places_M)
        rows_M = base_file_rows.find_rows(rows.mixed, rows.feature, mixed_M, out.features)
        found_M[:] = rows_M >= 0
        columns = rows.value, states, rows.count, rows.last_seen
        for column in columns:
            request(column, rows_M[found_M])
        base_file_rows.copy_rows(*columns, rows_M, out.values, out.states, out.counts, out.last_seen)
