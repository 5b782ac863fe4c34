"""Ids that are not in a message but beside it: the record's key, and its headers (`[source] record_fields`).

Their bytes are text, whose id is that of the same string in a message: "7" and 7 are one id. Of several headers of one
name the last counts. What is missing or null is a missing id. Rows of files have neither.
"""

# N records
from typing import NamedTuple

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.decode.formats import HEADER, KEY
from springtide.stream.decode.parsers.record_text import HASHED, MALFORMED, NO_TEXT, find_headers, write_text_ids
from springtide_client.array_types import BoolArray, Int64Array
from springtide_client.errors import EncodeError
from springtide_client.keys import MISSING_ID


class RecordIds(NamedTuple):
    """The ids of one field. The string of a hashed one is `length_N` bytes from `start_N` on in the records' buffer."""

    ids_N: Int64Array
    is_hashed_N: BoolArray
    errors: dict[int, EncodeError]  # of records that cannot be learned
    start_N: Int64Array
    length_N: Int64Array

    def string(self, raw: RawRecords, n: int) -> str:
        """The string of record n."""
        start = int(self.start_N[n])
        return raw.buffer[start : start + int(self.length_N[n])].decode()


def read_ids(raw: RawRecords, name: str) -> RecordIds:
    """Read one field of all records."""
    buffer = np.frombuffer(raw.buffer, np.uint8) if raw.buffer else np.zeros(1, np.uint8)
    start_N, length_N = raw.key_start_N, raw.key_length_N
    if name != KEY:
        start_N, length_N = np.zeros(len(raw), np.int64), np.full(len(raw), -1, np.int64)
        if raw.has_headers:
            name_H = np.frombuffer(name.removeprefix(HEADER).encode(), np.uint8)
            after_N = raw.value_start_N + np.maximum(raw.value_length_N, 0)
            find_headers(buffer, after_N, name_H, start_N, length_N)
    ids_N, kind_N = np.full(len(raw), MISSING_ID, np.int64), np.empty(len(raw), np.int8)
    write_text_ids(buffer, np.ascontiguousarray(start_N), np.ascontiguousarray(length_N), ids_N, kind_N)
    errors = {}
    for n in np.flatnonzero((kind_N == NO_TEXT) | (length_N == MALFORMED)).tolist():
        what = "its bytes are not UTF-8" if kind_N[n] == NO_TEXT else "the record's headers contradict themselves"
        errors[n] = EncodeError("bad_record_field", f"{name}: {what}", field=name)
    return RecordIds(ids_N, kind_N == HASHED, errors, start_N, length_N)
