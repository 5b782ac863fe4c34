# mypy: disable-error-code="untyped-decorator"
"""Messages to columns: walks the bytes of each record once and writes what its fields say; flags what deviates."""

# N records, J fields
import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from stream.decode.json_parser.byte_ops import byte_at, skip_space
from stream.decode.json_parser.field_names import find_field, is_name
from stream.decode.json_parser.field_table import CATEGORICAL, DENSE, LABEL, LIST, TIME, WEIGHT
from stream.decode.json_parser.jit import OPTIONS, inlined
from stream.decode.json_parser.seen_set import clear_if_full, undo_add
from stream.decode.json_parser.skip import CLOSE_OBJECT, COLON, COMMA, OPEN_OBJECT, literal_length, skip_value
from stream.decode.json_parser.strings import QUOTE, scan_string
from stream.decode.json_parser.values import (
    MISSING_ID,
    NULL,
    NUM_ELEMENTS,
    NUM_RECORDS,
    NUM_TEXTS,
    read_id,
    read_list,
    read_number,
    read_time,
)

NAN32 = np.float32(np.nan)


class MessageBytes(NamedTuple):
    """The bytes of the records, and what is known of them without reading."""

    buffer: npt.NDArray[np.uint8]
    start_N: npt.NDArray[np.int64]
    length_N: npt.NDArray[np.int64]
    record_ms_N: npt.NDArray[np.int64]


class ParseTarget(NamedTuple):
    """The columns of decode_rows.Rows, and which records deviate: those rows hold nothing of use."""

    labels_NL: npt.NDArray[np.float32]
    weights_N: npt.NDArray[np.float32]
    event_ms_N: npt.NDArray[np.int64]
    categorical_NC: npt.NDArray[np.int64]
    start_NP: npt.NDArray[np.int64]
    length_NP: npt.NDArray[np.int64]
    dense_NF: npt.NDArray[np.float32]
    deviates_N: npt.NDArray[np.bool_]


@inlined
def write_missing(role: Any, column: Any, n: Any, target: Any) -> Any:
    """A field that is absent or null; False where that must be judged."""
    if role == CATEGORICAL:
        target.categorical_NC[n, column] = MISSING_ID
    elif role == DENSE:
        target.dense_NF[n, column] = NAN32
    elif role == LIST:
        target.start_NP[n, column] = 0
        target.length_NP[n, column] = 0
    elif role == LABEL:
        target.labels_NL[n, column] = NAN32
    elif role == WEIGHT:
        target.weights_N[n] = np.float32(1)
    return role != TIME


@inlined
def read_field(
    buffer: Any, at: Any, end: Any, plan: Any, field: Any, n: Any, target: Any, work: Any, latest: Any
) -> Any:
    """The position after the field's value, which is now in row n; -1 where it deviates."""
    role, column = plan.role_J[field], plan.column_J[field]
    if byte_at(buffer, at, end) == NULL:
        good = write_missing(role, column, n, target) and literal_length(buffer, at, end) > 0
        return at + 4 if good else np.int64(-1)
    if role == CATEGORICAL:
        at, target.categorical_NC[n, column] = read_id(buffer, at, end, plan.feature_J[field], work)
        return at
    if role == LIST:
        at, start, length = read_list(buffer, at, end, plan.feature_J[field], plan.limit_J[field], work)
        target.start_NP[n, column] = start
        target.length_NP[n, column] = length
        return at
    if role == TIME:
        at, target.event_ms_N[n] = read_time(buffer, at, end, latest)
        return at
    at, value = read_number(buffer, at, end)
    if role == DENSE:
        target.dense_NF[n, column] = value
    elif role == LABEL:
        target.labels_NL[n, column] = value
        return at if 0 <= value <= 1 else np.int64(-1)
    else:
        target.weights_N[n] = value
        return at if value >= 0 else np.int64(-1)
    return at


@inlined
def read_record(buffer: Any, at: Any, end: Any, plan: Any, n: Any, target: Any, work: Any, latest: Any) -> Any:
    """Whether row n now holds the record."""
    at = skip_space(buffer, at, end)
    if byte_at(buffer, at, end) != OPEN_OBJECT:
        return False
    at = skip_space(buffer, at + 1, end)
    stamp = work.counts[NUM_RECORDS] + 1
    work.counts[NUM_RECORDS] = stamp
    num_seen = 0
    place = 0
    while True:
        if byte_at(buffer, at, end) != QUOTE:
            return False
        at += 1
        field = work.shape[place]
        if field >= 0 and is_name(buffer, at, end, plan, field):
            at += plan.name_length_J[field]
        else:
            close, escaped = scan_string(buffer, at, end)
            if close < 0 or escaped:
                return False
            field = find_field(buffer, at, close, end, plan)
            work.shape[place] = field
            at = close
        place = min(place + 1, len(work.shape) - 1)
        at = skip_space(buffer, at + 1, end)
        if byte_at(buffer, at, end) != COLON:
            return False
        at = skip_space(buffer, at + 1, end)
        if field < 0:
            at = skip_value(buffer, at, end)
        else:
            if work.seen_J[field] == stamp:
                return False
            work.seen_J[field] = stamp
            num_seen += 1
            at = read_field(buffer, at, end, plan, field, n, target, work, latest)
        if at < 0:
            return False
        at = skip_space(buffer, at, end)
        byte = byte_at(buffer, at, end)
        if byte == CLOSE_OBJECT:
            break
        if byte != COMMA:
            return False
        at = skip_space(buffer, at + 1, end)
    if skip_space(buffer, at + 1, end) != end:
        return False
    if num_seen < len(work.seen_J):
        for field in range(len(work.seen_J)):
            if work.seen_J[field] != stamp and not write_missing(plan.role_J[field], plan.column_J[field], n, target):
                return False
    num_labels = 0
    for label in range(target.labels_NL.shape[1]):
        num_labels += 0 if np.isnan(target.labels_NL[n, label]) else 1
    return num_labels > 0


def compile_kernel(fingerprint: str) -> Callable[..., int]:
    """The scanner, compiled. Numba's cache looks at this file alone; the fingerprint makes it see all of them."""

    @njit(cache=True, **OPTIONS)
    def scan(
        first: Any,
        messages: Any,
        plan: Any,
        target: Any,
        work: Any,
        longest: Any,
        now_ms: Any,
        future_ms: Any,
    ) -> Any:
        """Reads records from the first on; stops early at one that the workspace has no room for. The next to read."""
        fingerprint  # noqa: B018  a free variable is part of the cache's key
        has_time, has_weight = False, False
        for role in plan.role_J:
            has_time = has_time or role == TIME
            has_weight = has_weight or role == WEIGHT
        for n in range(first, len(messages.start_N)):
            start, length, record_ms = messages.start_N[n], messages.length_N[n], messages.record_ms_N[n]
            target.deviates_N[n] = True
            if length < 0 or length > longest:
                continue
            most = length // 2 + 1
            num_elements, num_texts = work.counts[NUM_ELEMENTS], work.counts[NUM_TEXTS]
            if num_elements + most > len(work.elements_E) or num_texts + most > len(work.text_id_T):
                return n
            clear_if_full(work.seen_slots, work.seen_count)
            latest = (min(record_ms, now_ms) if record_ms > 0 else now_ms) + future_ms
            if not has_time:
                target.event_ms_N[n] = max(record_ms, 0)
                if target.event_ms_N[n] > now_ms + future_ms:
                    continue
            if not has_weight:
                target.weights_N[n] = np.float32(1)
            if read_record(messages.buffer, start, start + length, plan, n, target, work, latest):
                target.deviates_N[n] = False
                continue
            work.counts[NUM_ELEMENTS] = num_elements
            while work.counts[NUM_TEXTS] > num_texts:
                work.counts[NUM_TEXTS] -= 1
                undo_add(work.seen_slots, work.seen_count, work.text_slot_T[work.counts[NUM_TEXTS]])
        return len(messages.start_N)

    compiled: Callable[..., int] = scan
    return compiled


@lru_cache(1)
def parse_kernel() -> Callable[..., int]:
    """The scanner; compiled, or loaded from Numba's cache, at its first call."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return compile_kernel(hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest())
