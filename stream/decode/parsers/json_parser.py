"""The fast path of JSON: a compiled loop reads the bytes of each record once, and writes its fields into columns.

What it does not parse it flags for the reference decoder.
"""

# N records, J fields, E elements of all lists, T new strings
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.intrinsics.specialize import named_specialization
from springtide.kernels.njit import njit
from springtide.stream.columns import RawRecords
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.decode.parsers.byte_ops import OPTIONS, byte_at, inlined, skip_space
from springtide.stream.decode.parsers.field_table import (
    CATEGORICAL,
    DENSE,
    KEY,
    LABEL,
    LIST,
    TIME,
    VALUE_LABEL,
    WEIGHT,
    build_field_table,
    find_name,
    matches_key,
    matches_name,
)
from springtide.stream.decode.parsers.json_strings import QUOTE, scan_string
from springtide.stream.decode.parsers.json_values import (
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MISSING_ID,
    NULL,
    NUM_ELEMENTS,
    NUM_RECORDS,
    NUM_STRINGS,
    OPEN_OBJECT,
    Workspace,
    literal_length,
    read_id,
    read_list,
    read_number,
    read_time,
    skip_value,
)
from springtide.stream.decode.parsers.seen_set import SeenSet, clear_if_full, undo_add
from springtide.stream.decode.rows import DecodedRows, RecordParser
from springtide_client.features import IdStrings
from springtide_client.schema import Schema

NAN32 = np.float32(np.nan)


class MessageBytes(NamedTuple):
    """The bytes of the records, and where each lies."""

    buffer: npt.NDArray[np.uint8]
    start_N: npt.NDArray[np.int64]
    length_N: npt.NDArray[np.int64]
    record_ms_N: npt.NDArray[np.int64]


class ParseTarget(NamedTuple):
    """The arrays of DecodedRows, and which records were left to the reference decoder: their rows are undefined."""

    labels_NL: npt.NDArray[np.float32]
    weights_N: npt.NDArray[np.float32]
    event_ms_N: npt.NDArray[np.int64]
    categorical_NC: npt.NDArray[np.int64]
    start_NP: npt.NDArray[np.int64]
    length_NP: npt.NDArray[np.int64]
    dense_NF: npt.NDArray[np.float32]
    key_NK: npt.NDArray[np.int64]
    unparsed_N: npt.NDArray[np.bool_]

    @staticmethod
    def of(rows: DecodedRows, unparsed_N: npt.NDArray[np.bool_]) -> "ParseTarget":
        """The arrays of `rows`."""
        return ParseTarget(
            rows.labels_NL,
            rows.weights_N,
            rows.event_ms_N,
            rows.categorical_NC,
            rows.start_NP,
            rows.length_NP,
            rows.dense_NF,
            rows.key_NK,
            unparsed_N,
        )


@inlined
def write_missing(role: Any, column: Any, n: Any, out: Any) -> Any:
    """Write a field that is absent or null; return False if the reference decoder must decide."""
    if role == CATEGORICAL:
        out.categorical_NC[n, column] = MISSING_ID
    elif role == KEY:
        out.key_NK[n, column] = MISSING_ID
    elif role == DENSE:
        out.dense_NF[n, column] = NAN32
    elif role == LIST:
        out.start_NP[n, column] = 0
        out.length_NP[n, column] = 0
    elif role in (LABEL, VALUE_LABEL):
        out.labels_NL[n, column] = NAN32
    elif role == WEIGHT:
        out.weights_N[n] = np.float32(1)
    return role != TIME


@inlined
def read_field(
    buffer: Any, at: Any, end: Any, fields: Any, field: Any, n: Any, out: Any, work: Any, latest: Any
) -> Any:
    """Write the field's value to row n and return the position after it; -1 leaves the record to the reference."""
    # unsigned, so that no index counts from the end
    field, n = np.uint64(field), np.uint64(n)
    role, column = fields.role_J[field], np.uint64(fields.column_J[field])
    if byte_at(buffer, at, end) == NULL:
        good = write_missing(role, column, n, out) and literal_length(buffer, at, end) > 0
        return at + 4 if good else np.int64(-1)
    if role == CATEGORICAL:
        at, out.categorical_NC[n, column] = read_id(buffer, at, end, fields.feature_J[field], work)
        return at
    if role == KEY:
        at, out.key_NK[n, column] = read_id(buffer, at, end, fields.feature_J[field], work)
        return at
    if role == LIST:
        at, start, length = read_list(buffer, at, end, fields.feature_J[field], fields.limit_J[field], work)
        out.start_NP[n, column] = start
        out.length_NP[n, column] = length
        return at
    if role == TIME:
        at, out.event_ms_N[n] = read_time(buffer, at, end, latest)
        return at
    at, value = read_number(buffer, at, end)
    if role == DENSE:
        out.dense_NF[n, column] = value
    elif role == LABEL:
        out.labels_NL[n, column] = value
        return at if 0 <= value <= 1 else np.int64(-1)
    elif role == VALUE_LABEL:  # a negative one is left to the reference: not every link has it
        out.labels_NL[n, column] = value
        return at if value >= 0 else np.int64(-1)
    else:
        out.weights_N[n] = value
        return at if value >= 0 else np.int64(-1)
    return at


@inlined
def read_record(
    buffer: Any, at: Any, end: Any, fields: Any, has_paths: Any, n: Any, out: Any, work: Any, latest: Any
) -> Any:
    """Write a record to row n; return False to leave it to the reference. `has_paths`, a constant, as of a kernel."""
    at = skip_space(buffer, at, end)
    if byte_at(buffer, at, end) != OPEN_OBJECT:
        return False
    at = skip_space(buffer, at + 1, end)
    record = work.counts[NUM_RECORDS] + 1
    work.counts[NUM_RECORDS] = record
    num_fields = len(fields.role_J)
    num_seen = 0
    place = 0
    inside = np.int64(0)  # the object
    while True:
        if byte_at(buffer, at, end) != QUOTE:
            return False
        at += 1
        name = work.name_order[np.uint64(place)]
        if has_paths and name >= 0 and fields.object_X[np.uint64(name)] != inside:
            name = np.int64(-1)
        if name >= 0 and matches_key(buffer, at, end, fields, name):
            at += fields.name_length_X[name] + 1
        else:
            if name >= 0 and matches_name(buffer, at, end, fields, name):
                at += fields.name_length_X[name]
            else:
                close, escaped = scan_string(buffer, at, end)
                if close < 0 or escaped:
                    return False
                name = find_name(buffer, at, close, fields, fields.buckets_H, inside)
                work.name_order[place] = name
                at = close
            at = skip_space(buffer, at + 1, end)
            if byte_at(buffer, at, end) != COLON:
                return False
        place = min(place + 1, len(work.name_order) - 1)
        at = skip_space(buffer, at + 1, end)
        field = fields.field_X[name] if has_paths and name >= num_fields else name
        if name < 0:
            at = skip_value(buffer, at, end)
        elif has_paths and field < 0:
            if work.last_record_X[name] == record:
                return False
            work.last_record_X[name] = record
            if byte_at(buffer, at, end) == OPEN_OBJECT:
                inside = fields.opened_X[name]
                at = skip_space(buffer, at + 1, end)
                if byte_at(buffer, at, end) != CLOSE_OBJECT:
                    continue
            elif literal_length(buffer, at, end) > 0 and byte_at(buffer, at, end) == NULL:
                at += 4
            else:
                return False
        else:
            if work.last_record_X[np.uint64(field)] == record:
                return False
            work.last_record_X[np.uint64(field)] = record
            num_seen += 1
            at = read_field(buffer, at, end, fields, field, n, out, work, latest)
        if at < 0:
            return False
        at = skip_space(buffer, at, end)
        byte = byte_at(buffer, at, end)
        while has_paths and inside != 0 and byte == CLOSE_OBJECT:
            inside = fields.parent_G[inside]
            at = skip_space(buffer, at + 1, end)
            byte = byte_at(buffer, at, end)
        if byte == CLOSE_OBJECT:
            break
        if byte != COMMA:
            return False
        at = skip_space(buffer, at + 1, end)
    if skip_space(buffer, at + 1, end) != end:
        return False
    if num_seen < num_fields:
        for field in range(num_fields):
            if work.last_record_X[field] != record and not write_missing(
                fields.role_J[field], fields.column_J[field], n, out
            ):
                return False
    num_labels = 0
    for label in range(out.labels_NL.shape[1]):
        num_labels += 0 if np.isnan(out.labels_NL[n, label]) else 1
    return num_labels > 0 or not fields.needs_label


def compile_kernel(fingerprint: str, has_paths: bool) -> Callable[..., int]:
    """Compile the loop. Numba's cache checks this file alone; the fingerprint makes it depend on the whole folder."""

    def parse_records(
        first: Any,
        messages: Any,
        fields: Any,
        out: Any,
        work: Any,
        longest: Any,
        now_ms: Any,
        future_ms: Any,
    ) -> Any:
        """Parse records from `first` on; stop early where the workspace has no room. Return the next to parse."""
        fingerprint  # noqa: B018  a free variable is part of the cache's key
        has_time, has_weight = False, False
        for role in fields.role_J:
            has_time = has_time or role == TIME
            has_weight = has_weight or role == WEIGHT
        for n in range(first, len(messages.start_N)):
            start, length, record_ms = messages.start_N[n], messages.length_N[n], messages.record_ms_N[n]
            out.unparsed_N[n] = True
            if length < 0 or length > longest:
                continue
            most = length // 2 + 1
            num_elements, num_strings = work.counts[NUM_ELEMENTS], work.counts[NUM_STRINGS]
            if num_elements + most > len(work.elements_E) or num_strings + most > len(work.string_id_T):
                return n
            clear_if_full(work.seen_slots, work.seen_count)
            latest = (min(record_ms, now_ms) if record_ms > 0 else now_ms) + future_ms
            if not has_time:
                out.event_ms_N[n] = max(record_ms, 0)
                if out.event_ms_N[n] > now_ms + future_ms:
                    continue
            if not has_weight:
                out.weights_N[n] = np.float32(1)
            if read_record(messages.buffer, start, start + length, fields, has_paths, n, out, work, latest):
                out.unparsed_N[n] = False
                continue
            work.counts[NUM_ELEMENTS] = num_elements
            while work.counts[NUM_STRINGS] > num_strings:
                work.counts[NUM_STRINGS] -= 1
                undo_add(work.seen_slots, work.seen_count, work.string_slot_T[work.counts[NUM_STRINGS]])
        return len(messages.start_N)

    compiled: Callable[..., int] = njit(cache=True, **OPTIONS)(named_specialization(parse_records, has_paths))
    return compiled


@cache
def parse_kernel(has_paths: bool) -> Callable[..., int]:
    """The loop; compiled, or loaded from Numba's cache, at its first call.

    Without `has_paths` it is for records whose fields all stand in the record itself: it does not look for objects.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return compile_kernel(digest, has_paths)


# names beyond this many in a record are found by hash only
MAX_ORDERED_NAMES = 512
MIN_CAPACITY = 1 << 12


class JsonParser(RecordParser):
    """The fast path of JSON."""

    def __init__(
        self,
        schema: Schema,
        config: DecodeConfig,
        seen: SeenSet,
        *,
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> None:
        self.fields = build_field_table(schema, keys, has_labels=has_labels)
        self.max_message_bytes = config.max_message_bytes
        self.future_ms = int(config.max_future_seconds * 1000)
        self.work = Workspace(
            counts=np.zeros(3, np.int64),
            elements_E=np.empty(MIN_CAPACITY, np.int64),
            string_feature_T=np.empty(MIN_CAPACITY, np.uint16),
            string_id_T=np.empty(MIN_CAPACITY, np.int64),
            string_start_T=np.empty(MIN_CAPACITY, np.int64),
            string_length_T=np.empty(MIN_CAPACITY, np.int64),
            string_slot_T=np.empty(MIN_CAPACITY, np.int64),
            seen_slots=seen.slots,
            seen_count=seen.num_keys,
            scratch=np.empty(0, np.uint8),
            last_record_X=np.zeros(len(self.fields.field_X), np.int64),
            name_order=np.full(MAX_ORDERED_NAMES, -1, np.int64),
        )

    def parse(self, raw: RawRecords, rows: DecodedRows, now_ms: int) -> tuple[npt.NDArray[np.bool_], IdStrings]:
        unparsed_N = np.empty(len(raw), np.bool_)
        messages = MessageBytes(
            np.frombuffer(raw.buffer, np.uint8), raw.value_start_N, raw.value_length_N, raw.record_ms_N
        )
        out = ParseTarget.of(rows, unparsed_N)
        kernel = parse_kernel(self.fields.has_paths)
        self.work.counts[[NUM_ELEMENTS, NUM_STRINGS]] = 0
        # what a string with escapes may need: as long as the longest message that is parsed
        self._grow(scratch=min(self.max_message_bytes, int(raw.value_length_N.max(initial=0))))
        n = 0
        while True:
            n = kernel(n, messages, self.fields, out, self.work, self.max_message_bytes, now_ms, self.future_ms)
            if n == len(raw):
                break
            # the most elements and strings that a record can have
            most = int(raw.value_length_N[n]) // 2 + 1
            num_elements, num_strings, _ = self.work.counts.tolist()
            self._grow(elements=num_elements + most, strings=num_strings + most)
        rows.elements_E = self.work.elements_E
        rows.num_elements = int(self.work.counts[NUM_ELEMENTS])
        return unparsed_N, self._new_strings(raw.buffer)

    def _new_strings(self, buffer: bytes) -> IdStrings:
        """The strings found by the last call: a step in Python for each, but only at the first sight of its id."""
        work, num_strings = self.work, int(self.work.counts[NUM_STRINGS])
        strings = []
        for start, length in zip(
            work.string_start_T[:num_strings].tolist(), work.string_length_T[:num_strings].tolist(), strict=True
        ):
            strings.append(self._string(buffer, start, length))
        return IdStrings(work.string_feature_T[:num_strings].copy(), work.string_id_T[:num_strings].copy(), strings)

    def _string(self, buffer: bytes, start: int, length: int) -> str:
        if length < 0:
            return msgspec.json.decode(buffer[start - 1 : start - length + 1], type=str)
        return buffer[start : start + length].decode()

    def _grow(self, *, elements: int = 0, strings: int = 0, scratch: int = 0) -> None:
        """Let the workspace's arrays have at least these lengths; their contents stay."""
        lengths = {"elements_E": elements, "scratch": scratch}
        lengths |= dict.fromkeys([name for name in Workspace._fields if name.startswith("string_")], strings)
        for name, length in lengths.items():
            array = getattr(self.work, name)
            if length > len(array):
                larger = np.empty(max(length, 2 * len(array)), array.dtype)
                larger[: len(array)] = array
                self.work = self.work._replace(**{name: larger})
