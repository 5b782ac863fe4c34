"""What the fast paths of binary formats share: the loop over records, the workspace, the symbols of enums.

A format brings a program, its schema as arrays, and a compiled function that reads one record by it.
"""

# N records, T new strings, S symbols of enums, D depth
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import RawRecords
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.decode.parsers.byte_ops import inlined
from springtide.stream.decode.parsers.field_table import TIME, WEIGHT, field_names
from springtide.stream.decode.parsers.json_parser import JsonParser, MessageBytes, ParseTarget
from springtide.stream.decode.parsers.json_values import NUM_ELEMENTS, NUM_RECORDS, NUM_STRINGS
from springtide.stream.decode.parsers.seen_set import SeenSet, clear_if_full, undo_add
from springtide.stream.decode.parsers.typed_values import begin_row
from springtide.stream.decode.rows import DecodedRows
from springtide_client.features import IdStrings
from springtide_client.keys import encode_id
from springtide_client.schema import Schema

MAX_DEPTH = 64


class Symbols(NamedTuple):
    """The ids of the symbols of all enums."""

    id_S: npt.NDArray[np.int64]
    is_hashed_S: npt.NDArray[np.bool_]


class Stack(NamedTuple):
    """Room for what a program is inside of: three numbers a level."""

    node_D: npt.NDArray[np.int64]
    next_D: npt.NDArray[np.int64]
    left_D: npt.NDArray[np.int64]


class ProgramRecords(NamedTuple):
    """The records that one program reads, bool (N), and how many bytes precede each body."""

    program: Any
    is_chosen_N: npt.NDArray[np.bool_]
    header_bytes: int


@inlined
def begin_record(
    n: Any, messages: Any, fields: Any, out: Any, work: Any, longest: Any, now_ms: Any, future_ms: Any
) -> Any:
    """(whether to read record n, the latest time it may have); a time of -1: the workspace has no room for it."""
    length, record_ms = messages.length_N[n], messages.record_ms_N[n]
    latest = (min(record_ms, now_ms) if record_ms > 0 else now_ms) + future_ms
    if length < 0 or length > longest:
        return False, latest
    most = length + len(fields.role_J) + 1
    if work.counts[NUM_ELEMENTS] + most > len(work.elements_E) or work.counts[NUM_STRINGS] + most > len(
        work.string_id_T
    ):
        return False, np.int64(-1)
    clear_if_full(work.seen_slots, work.seen_count)
    has_time, has_weight = False, False
    for role in fields.role_J:
        has_time = has_time or role == TIME
        has_weight = has_weight or role == WEIGHT
    if not has_time:
        out.event_ms_N[n] = max(record_ms, 0)
        if out.event_ms_N[n] > now_ms + future_ms:
            return False, latest
    if not has_weight:
        out.weights_N[n] = np.float32(1)
    work.counts[NUM_RECORDS] += 1
    begin_row(fields, n, out)
    return True, latest


@inlined
def undo_record(num_elements: Any, num_strings: Any, work: Any) -> None:
    """Forget the elements and strings of a record that is left to the reference."""
    work.counts[NUM_ELEMENTS] = num_elements
    while work.counts[NUM_STRINGS] > num_strings:
        work.counts[NUM_STRINGS] -= 1
        undo_add(work.seen_slots, work.seen_count, work.string_slot_T[work.counts[NUM_STRINGS]])


def fingerprint_of(path: str) -> str:
    """A digest of all parsers: Numba's cache checks one file alone."""
    sources = sorted(Path(path).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


class BinaryParser(JsonParser):
    """The fast path of a binary format."""

    def __init__(
        self,
        schema: Schema,
        config: DecodeConfig,
        seen: SeenSet,
        *,
        kernel: Callable[[], Callable[..., int]],
        choose: "Callable[[RawRecords, BinaryParser], Iterable[ProgramRecords]]",
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> None:
        """`choose`: the programs of records; records of none are left to the reference."""
        super().__init__(schema, config, seen, keys=keys, has_labels=has_labels)
        self._kernel, self._choose = kernel, choose
        self._symbols: list[str] = []
        self._stack = Stack(*(np.zeros(MAX_DEPTH, np.int64) for _ in Stack._fields))
        self.names = field_names(schema, keys, has_labels=has_labels)

    def add_symbols(self, texts: Iterable[str]) -> int:
        """Add an enum's symbols; returns the number of the first, which the others follow."""
        first = len(self._symbols)
        self._symbols += texts
        return first

    def parse(self, raw: RawRecords, rows: DecodedRows, now_ms: int) -> tuple[npt.NDArray[np.bool_], IdStrings]:
        unparsed_N = np.ones(len(raw), np.bool_)
        buffer = np.frombuffer(raw.buffer, np.uint8) if raw.buffer else np.zeros(1, np.uint8)
        out = ParseTarget.of(rows, unparsed_N)
        self.work.counts[[NUM_ELEMENTS, NUM_STRINGS]] = 0
        chosen = list(self._choose(raw, self))
        encoded = [encode_id(text) for text in self._symbols]
        symbols = Symbols(
            np.array([id_ for id_, _ in encoded], np.int64),
            np.array([string is not None for _, string in encoded], np.bool_),
        )
        messages = MessageBytes(buffer, raw.value_start_N, raw.value_length_N, raw.record_ms_N)
        kernel = self._kernel()
        for program, is_chosen_N, header_bytes in chosen:
            n = 0
            while True:
                n = kernel(
                    n,
                    messages,
                    self.fields,
                    program,
                    symbols,
                    is_chosen_N,
                    header_bytes,
                    out,
                    self.work,
                    self._stack,
                    self.max_message_bytes,
                    now_ms,
                    self.future_ms,
                )
                if n == len(raw):
                    break
                most = int(raw.value_length_N[n]) + len(self.fields.role_J) + 1
                num_elements, num_strings, _ = self.work.counts.tolist()
                self._grow(elements=num_elements + most, strings=num_strings + most)
        rows.elements_E = self.work.elements_E
        rows.num_elements = int(self.work.counts[NUM_ELEMENTS])
        return unparsed_N, self._new_strings(raw.buffer)

    def _string(self, buffer: bytes, start: int, length: int) -> str:
        return self._symbols[-1 - start] if start < 0 else buffer[start : start + length].decode()
