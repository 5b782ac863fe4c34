"""The scanner as Python sees it: its workspace, kept from call to call, and the texts that it work."""

# N records, E elements of all lists, T new texts
import msgspec
import numpy as np
import numpy.typing as npt
from springtide_client.features import IdStrings
from springtide_client.schema import Schema

from stream.decode.json_parser.field_table import build_field_table
from stream.decode.json_parser.parse_kernel import MessageBytes, ParseTarget, parse_kernel
from stream.decode.json_parser.seen_set import SeenSet
from stream.decode.json_parser.values import NUM_ELEMENTS, NUM_TEXTS, Workspace
from stream.decode.rows import DecodedRows
from stream.records import RawRecords

# fields beyond so many in a record are found by hash only
MAX_SHAPE = 512
MIN_ROOM = 1 << 12


class JsonParser:
    """Reads the records that it understands into rows. One thread at a time."""

    def __init__(self, schema: Schema, *, max_message_bytes: int, max_future_seconds: float, told: SeenSet) -> None:
        self.plan = build_field_table(schema)
        self.max_message_bytes = max_message_bytes
        self.future_ms = int(max_future_seconds * 1000)
        self.told = told
        self.work = Workspace(
            counts=np.zeros(3, np.int64),
            elements_E=np.empty(MIN_ROOM, np.int64),
            text_feature_T=np.empty(MIN_ROOM, np.uint16),
            text_id_T=np.empty(MIN_ROOM, np.int64),
            text_start_T=np.empty(MIN_ROOM, np.int64),
            text_length_T=np.empty(MIN_ROOM, np.int64),
            text_slot_T=np.empty(MIN_ROOM, np.int64),
            seen_slots=told.slots,
            seen_count=told.num_keys,
            scratch=np.empty(0, np.uint8),
            seen_J=np.zeros(len(self.plan.role_J), np.int64),
            shape=np.full(MAX_SHAPE, -1, np.int64),
        )

    def parse(self, raw: RawRecords, rows: DecodedRows, now_ms: int) -> tuple[npt.NDArray[np.bool_], IdStrings]:
        """Which records deviate, their rows being unwritten; the texts told by the others."""
        deviates_N = np.empty(len(raw), np.bool_)
        messages = MessageBytes(
            np.frombuffer(raw.buffer, np.uint8), raw.value_start_N, raw.value_length_N, raw.record_ms_N
        )
        target = ParseTarget(
            rows.labels_NL,
            rows.weights_N,
            rows.event_ms_N,
            rows.categorical_NC,
            rows.start_NP,
            rows.length_NP,
            rows.dense_NF,
            deviates_N,
        )
        kernel = parse_kernel()
        self.work.counts[[NUM_ELEMENTS, NUM_TEXTS]] = 0
        # what an escaped text may need, as long as the longest message that is read
        self.grow(scratch=min(self.max_message_bytes, int(raw.value_length_N.max(initial=0))))
        n = 0
        while True:
            n = kernel(n, messages, self.plan, target, self.work, self.max_message_bytes, now_ms, self.future_ms)
            if n == len(raw):
                break
            # a record has at most so many elements and texts
            most = int(raw.value_length_N[n]) // 2 + 1
            num_elements, num_texts, _ = self.work.counts.tolist()
            self.grow(elements=num_elements + most, texts=num_texts + most)
        rows.elements_E = self.work.elements_E
        rows.num_elements = int(self.work.counts[NUM_ELEMENTS])
        return deviates_N, self.id_strings(raw.buffer)

    def id_strings(self, buffer: bytes) -> IdStrings:
        """The texts found by the last scan: a step in Python for each, but at its first sight only."""
        num_texts = int(self.work.counts[NUM_TEXTS])
        texts = []
        for start, length in zip(
            self.work.text_start_T[:num_texts].tolist(), self.work.text_length_T[:num_texts].tolist(), strict=True
        ):
            if length < 0:
                texts.append(msgspec.json.decode(buffer[start - 1 : start - length + 1], type=str))
            else:
                texts.append(buffer[start : start + length].decode())
        return IdStrings(self.work.text_feature_T[:num_texts].copy(), self.work.text_id_T[:num_texts].copy(), texts)

    def grow(self, *, elements: int = 0, texts: int = 0, scratch: int = 0) -> None:
        """Room for so many in all; what is there stays."""
        wanted = {"elements_E": elements, "scratch": scratch}
        wanted |= dict.fromkeys([name for name in Workspace._fields if name.startswith("text_")], texts)
        for name, size in wanted.items():
            array = getattr(self.work, name)
            if size > len(array):
                larger = np.empty(max(size, 2 * len(array)), array.dtype)
                larger[: len(array)] = array
                self.work = self.work._replace(**{name: larger})
