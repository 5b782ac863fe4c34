"""The JSON parser for Python callers: keeps the workspace from call to call, and collects the strings of new ids."""

# N records, E elements of all lists, T new strings
import msgspec
import numpy as np
import numpy.typing as npt

from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.decode.json_parser.field_table import build_field_table
from springtide.stream.decode.json_parser.parse_kernel import MessageBytes, ParseTarget, parse_kernel
from springtide.stream.decode.json_parser.seen_set import SeenSet
from springtide.stream.decode.json_parser.values import NUM_ELEMENTS, NUM_STRINGS, Workspace
from springtide.stream.decode.rows import DecodedRows, RecordParser
from springtide.stream.records import RawRecords
from springtide_client.features import IdStrings
from springtide_client.schema import Schema

# fields beyond this many in a record are found by hash only
MAX_ORDERED_FIELDS = 512
MIN_CAPACITY = 1 << 12


class JsonParser(RecordParser):
    """The fast path of JSON."""

    def __init__(self, schema: Schema, config: DecodeConfig, seen: SeenSet) -> None:
        self.fields = build_field_table(schema)
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
            last_record_J=np.zeros(len(self.fields.role_J), np.int64),
            field_order=np.full(MAX_ORDERED_FIELDS, -1, np.int64),
        )

    def parse(self, raw: RawRecords, rows: DecodedRows, now_ms: int) -> tuple[npt.NDArray[np.bool_], IdStrings]:
        unparsed_N = np.empty(len(raw), np.bool_)
        messages = MessageBytes(
            np.frombuffer(raw.buffer, np.uint8), raw.value_start_N, raw.value_length_N, raw.record_ms_N
        )
        out = ParseTarget(
            rows.labels_NL,
            rows.weights_N,
            rows.event_ms_N,
            rows.categorical_NC,
            rows.start_NP,
            rows.length_NP,
            rows.dense_NF,
            unparsed_N,
        )
        kernel = parse_kernel()
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
            if length < 0:
                strings.append(msgspec.json.decode(buffer[start - 1 : start - length + 1], type=str))
            else:
                strings.append(buffer[start : start + length].decode())
        return IdStrings(work.string_feature_T[:num_strings].copy(), work.string_id_T[:num_strings].copy(), strings)

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
