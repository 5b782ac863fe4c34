"""The fast path of Arrow: compiled loops check messages of a known layout, and write their columns into rows.

A message with a row that they cannot decide is left to the reference as a whole.
"""

# N messages, R rows of all messages, D values of dictionaries, J fields
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.columns import RawRecords
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.decode.parsers.arrow_checks import LEFT, Needs, Pieces, check_message
from springtide.stream.decode.parsers.arrow_layout import MAX_PIECES, ArrowProgram, UnknownLayoutError, learn_program
from springtide.stream.decode.parsers.arrow_values import write_message
from springtide.stream.decode.parsers.binary_parser import fingerprint_of, undo_record
from springtide.stream.decode.parsers.byte_ops import OPTIONS
from springtide.stream.decode.parsers.field_table import TIME, WEIGHT, field_names
from springtide.stream.decode.parsers.json_parser import JsonParser, MessageBytes, ParseTarget
from springtide.stream.decode.parsers.json_values import NUM_ELEMENTS, NUM_RECORDS, NUM_STRINGS
from springtide.stream.decode.parsers.seen_set import SeenSet, clear_if_full
from springtide.stream.decode.rows import DecodedRows
from springtide_client.features import IdStrings
from springtide_client.schema import Schema

# of one message: a null column has as many rows as it says in no bytes at all
MAX_ROWS = 1 << 20
MAX_LAYOUTS, MAX_UNKNOWN = 16, 256
MIN_DICTIONARY = 1 << 10


class ArrowKernel(NamedTuple):
    """The compiled loops over messages."""

    check: Callable[..., None]
    write: Callable[..., int]


def compile_kernel(fingerprint: str) -> ArrowKernel:
    """Compile the loops; the fingerprint is part of the key of Numba's cache."""

    @njit(cache=True, **OPTIONS)
    def check_messages(
        messages: Any, program: Any, pieces: Any, longest: Any, most_rows: Any, needs: Any, num_rows_N: Any
    ) -> None:
        """Write the number of rows of each message that is of the layout and was not counted before."""
        fingerprint  # noqa: B018  a free variable is part of the cache's key
        for n in range(len(messages.start_N)):
            start, length = messages.start_N[n], messages.length_N[n]
            if num_rows_N[n] == LEFT and 0 <= length <= longest:
                num_rows_N[n] = check_message(
                    messages.buffer, start, start + length, program, pieces, n, most_rows, needs
                )

    @njit(cache=True, **OPTIONS)
    def write_messages(
        first: Any,
        messages: Any,
        fields: Any,
        program: Any,
        pieces: Any,
        is_chosen_N: Any,
        row_N: Any,
        num_rows_N: Any,
        needs: Any,
        out: Any,
        work: Any,
        now_ms: Any,
        future_ms: Any,
    ) -> Any:
        """Write messages from `first` on; stop early where the workspace has no room. Return the next."""
        fingerprint  # noqa: B018
        has_time, has_weight = False, False
        for role in fields.role_J:
            has_time = has_time or role == TIME
            has_weight = has_weight or role == WEIGHT
        for n in range(first, len(messages.start_N)):
            if not is_chosen_N[n]:
                continue
            num_elements, num_strings = work.counts[NUM_ELEMENTS], work.counts[NUM_STRINGS]
            if (
                num_elements + needs.elements_N[n] > len(work.elements_E)
                or num_strings + needs.strings_N[n] > len(work.string_id_T)
                or needs.dictionary_N[n] > len(pieces.id_D)
            ):
                return n
            clear_if_full(work.seen_slots, work.seen_count)
            work.counts[NUM_RECORDS] += 1
            record_ms, start, row = messages.record_ms_N[n], messages.start_N[n], row_N[n]
            latest = (min(record_ms, now_ms) if record_ms > 0 else now_ms) + future_ms
            good = True
            if not has_time:
                event_ms = max(record_ms, 0)
                good = event_ms <= now_ms + future_ms or num_rows_N[n] == 0
                for at in range(row, row + num_rows_N[n]):
                    out.event_ms_N[at] = event_ms
            if not has_weight:
                for at in range(row, row + num_rows_N[n]):
                    out.weights_N[at] = np.float32(1)
            end = start + messages.length_N[n]
            if good and write_message(messages.buffer, start, end, program, pieces, fields, row, out, work, latest):
                out.unparsed_N[n] = False
            else:
                undo_record(num_elements, num_strings, work)
        return len(messages.start_N)

    return ArrowKernel(check_messages, write_messages)


@lru_cache(1)
def arrow_kernel() -> ArrowKernel:
    """The loops; compiled, or loaded from Numba's cache, at their first call."""
    return compile_kernel(fingerprint_of(__file__))


def dictionary_arrays(
    size: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """The arrays of `Pieces` for so many values of dictionaries."""
    return np.zeros(size, np.int64), np.zeros(size, np.bool_), np.zeros(size, np.int64)


@dataclass
class CheckedMessages:
    """The messages of a poll: how many rows each has, -1 where it is left to pyarrow, and by which program."""

    raw: RawRecords
    messages: MessageBytes
    num_rows_N: npt.NDArray[np.int64]
    program_N: npt.NDArray[np.int64]
    needs: Needs
    programs: list[ArrowProgram]


class ArrowParser(JsonParser):
    """The fast path of Arrow: `check` messages, let pyarrow read the others and `learn` from them, `write` the rows."""

    def __init__(self, schema: Schema, config: DecodeConfig, seen: SeenSet) -> None:
        super().__init__(schema, config, seen)
        self.names = field_names(schema)
        self.programs: list[ArrowProgram] = []
        self._unknown: set[bytes] = set()
        at_S = [np.zeros(MAX_PIECES, np.int64) for _ in range(3)]
        self._pieces = Pieces(at_S[0], at_S[1], at_S[2], *dictionary_arrays(MIN_DICTIONARY))

    def check(self, raw: RawRecords) -> CheckedMessages:
        """Validate the messages whose layout is known."""
        buffer = np.frombuffer(raw.buffer or b"\0", np.uint8)
        found = CheckedMessages(
            raw,
            MessageBytes(buffer, raw.value_start_N, raw.value_length_N, raw.record_ms_N),
            num_rows_N=np.full(len(raw), LEFT, np.int64),
            program_N=np.full(len(raw), LEFT, np.int64),
            needs=Needs(*(np.zeros(len(raw), np.int64) for _ in Needs._fields)),
            programs=[],
        )
        for program in self.programs:
            self._check(found, program)
        return found

    def learn(self, value: bytes, found: CheckedMessages, n: int) -> bool:
        """Learn the layout of message n, which pyarrow has read, and check those messages that are left.

        Returns whether it was one.
        """
        import pyarrow as pa

        # the schema's bytes, and how many there are of the next metadata
        first = 8 + int.from_bytes(value[4:8], "little")
        key = value[:first] + value[first + 4 : first + 8]
        if key in self._unknown:
            return False
        try:
            with pa.ipc.open_stream(value) as reader:
                program = learn_program(value, reader.schema, self.names, self.fields.role_J)
        except (UnknownLayoutError, ValueError):  # a name in a struct that is no text
            program = None
        if program is not None:
            self._check(found, program)
        if program is None or found.num_rows_N[n] == LEFT:
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown.add(key)
            return False
        self.programs = [*self.programs[-MAX_LAYOUTS + 1 :], program]
        return True

    def write(
        self, found: CheckedMessages, rows: DecodedRows, row_N: npt.NDArray[np.int64], now_ms: int
    ) -> tuple[npt.NDArray[np.bool_], IdStrings]:
        """Write the checked messages to rows, each from its row in `row_N` on.

        Returns which were not written, bool (N), and the new strings.
        """
        unparsed_N = np.ones(len(row_N), np.bool_)
        out = ParseTarget.of(rows, unparsed_N)
        self.work.counts[[NUM_ELEMENTS, NUM_STRINGS]] = 0
        for number, program in enumerate(found.programs):
            is_chosen_N, n = found.program_N == number, 0
            while True:
                n = arrow_kernel().write(
                    n,
                    found.messages,
                    self.fields,
                    program,
                    self._pieces,
                    is_chosen_N,
                    row_N,
                    found.num_rows_N,
                    found.needs,
                    out,
                    self.work,
                    now_ms,
                    self.future_ms,
                )
                if n == len(row_N):
                    break
                num_elements, num_strings, _ = self.work.counts.tolist()
                elements, strings, dictionary = (int(needed_N[n]) for needed_N in found.needs)
                self._grow(elements=num_elements + elements, strings=num_strings + strings)
                if dictionary > len(self._pieces.id_D):
                    self._pieces = Pieces(*self._pieces[:3], *dictionary_arrays(2 * dictionary))
        rows.elements_E = self.work.elements_E
        rows.num_elements = int(self.work.counts[NUM_ELEMENTS])
        return unparsed_N, self._new_strings(found.raw.buffer)

    def _check(self, found: CheckedMessages, program: ArrowProgram) -> None:
        was_left_N = found.num_rows_N == LEFT
        arrow_kernel().check(
            found.messages, program, self._pieces, self.max_message_bytes, MAX_ROWS, found.needs, found.num_rows_N
        )
        found.program_N[was_left_N & (found.num_rows_N != LEFT)] = len(found.programs)
        found.programs.append(program)
